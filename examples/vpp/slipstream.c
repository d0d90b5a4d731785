/* Trains in VPP: a feature of device-input that holds packets of an interface for some microseconds and lets them go on
 * with packets of a flow back to back, so that the nodes behind it find their tables in the cache.
 *
 * A handle is a buffer's index, so that nothing has to be looked up and nothing is copied. Every thread has a reframer of its
 * own: the packets of a flow come to one thread, as RSS and VPP's queues do it.
 *
 *     set interface slipstream INTERFACE [disable]
 *     slipstream hold MICROSECONDS          (before the first interface)
 *     show slipstream
 */
#include <slipstream.h>
#include <vlib/vlib.h>
#include <vnet/feature/feature.h>
#include <vnet/plugin/plugin.h>
#include <vnet/vnet.h>
#include <vpp/app/version.h>

VLIB_PLUGIN_REGISTER () = {
  .version = VPP_BUILD_VER,
  .description = "Slipstream: packets of a flow back to back",
};

typedef struct
{
  CLIB_CACHE_LINE_ALIGN_MARK (line);
  slip_reframe *reframe;
  u64 now, ahead; /* the last time, and what it is ahead of VPP's */
} per_thread_t;

typedef struct
{
  per_thread_t *threads;
  slip_reframe_config config;
  u32 interfaces; /* that have the feature */
} slipstream_main_t;

static slipstream_main_t slipstream_main;

/* The feature, and the node that wakes for deadlines. */
extern vlib_node_registration_t slipstream_node, slipstream_deadline_node;

/* VPP's time runs backwards where a thread learns the frequency of its clock anew. The reframer's goes on
 * from where it was: packets that come with an earlier time than those inside would be refused, and overtake
 * them. */
static_always_inline u64
now_ns (vlib_main_t *vm, per_thread_t *thread)
{
  u64 now = (u64) (vlib_time_now (vm) * 1e9) + thread->ahead;

  if (PREDICT_FALSE (now < thread->now))
    {
      thread->ahead += thread->now - now;
      now = thread->now;
    }
  return thread->now = now;
}

/* Packets that left before `now` go to the feature behind this one. */
static uword
send_trains (vlib_main_t *vm, vlib_node_runtime_t *node, slip_reframe *reframe, u64 now)
{
  slip_train trains[64];
  u32 handles[VLIB_FRAME_SIZE];
  vlib_buffer_t *b[VLIB_FRAME_SIZE];
  u16 nexts[VLIB_FRAME_SIZE];
  uword sent = 0;
  i32 n;

  STATIC_ASSERT (VLIB_FRAME_SIZE >= SLIP_BURST, "a poll needs room for a train");
  while ((n = slip_reframe_poll (reframe, now, trains, ARRAY_LEN (trains), handles, VLIB_FRAME_SIZE)) > 0)
    {
      u32 packets = 0;
      for (i32 t = 0; t < n; t++)
	packets += trains[t].count;
      vlib_get_buffers (vm, handles, b, packets);
      for (u32 i = 0; i < packets; i++)
	vnet_feature_next_u16 (&nexts[i], b[i]);
      vlib_buffer_enqueue_to_next (vm, node, handles, nexts, packets);
      sent += packets;
    }
  return sent;
}

VLIB_NODE_FN (slipstream_node) (vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
  per_thread_t *thread = vec_elt_at_index (slipstream_main.threads, vm->thread_index);
  slip_reframe *reframe = thread->reframe;
  u32 *from = vlib_frame_vector_args (frame), n = frame->n_vectors;
  vlib_buffer_t *b[VLIB_FRAME_SIZE];
  slip_packet packets[VLIB_FRAME_SIZE];
  u64 now = now_ns (vm, thread);

  vlib_get_buffers (vm, from, b, n);
  for (u32 i = 0; i < n; i++)
    packets[i] = (slip_packet){
      .data = vlib_buffer_get_current (b[i]),
      .captured = b[i]->current_length,
      .length = vlib_buffer_length_in_chain (vm, b[i]),
      .handle = from[i],
    };
  /* Packets that left before go first: a push is refused while there is no room for those that wait. */
  send_trains (vm, node, reframe, now);
  if (PREDICT_FALSE (slip_reframe_push_burst (reframe, packets, n, now) != SLIP_OK))
    {
      /* Nothing of the burst was taken: it goes on as it came. */
      vlib_node_increment_counter (vm, slipstream_node.index, 0, n);
      u16 nexts[VLIB_FRAME_SIZE];
      for (u32 i = 0; i < n; i++)
	vnet_feature_next_u16 (&nexts[i], b[i]);
      vlib_buffer_enqueue_to_next (vm, node, from, nexts, n);
      return n;
    }
  send_trains (vm, node, reframe, now);
  return n;
}

/* Polled by every thread: lets packets go whose time has come although no packet came. */
VLIB_NODE_FN (slipstream_deadline_node) (vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)
{
  if (vm->thread_index >= vec_len (slipstream_main.threads))
    return 0;
  per_thread_t *thread = vec_elt_at_index (slipstream_main.threads, vm->thread_index);
  slip_reframe *reframe = thread->reframe;
  u64 now = now_ns (vm, thread);

  return slip_reframe_next_deadline (reframe) < now ? send_trains (vm, node, reframe, now) : 0;
}

VLIB_REGISTER_NODE (slipstream_node) = {
  .name = "slipstream",
  .vector_size = sizeof (u32),
  .type = VLIB_NODE_TYPE_INTERNAL,
  .n_errors = 1,
  .error_strings = (char *[]){ "packets that were not held" },
};

/* The same ways on as the feature has, so that a packet's next feature has the same number at both. */
VLIB_REGISTER_NODE (slipstream_deadline_node) = {
  .name = "slipstream-deadline",
  .type = VLIB_NODE_TYPE_INPUT,
  .state = VLIB_NODE_STATE_DISABLED,
  .sibling_of = "slipstream",
};

VNET_FEATURE_INIT (slipstream, static) = {
  .arc_name = "device-input",
  .node_name = "slipstream",
  .runs_before = VNET_FEATURES ("ethernet-input"),
};

static clib_error_t *
make_reframers (slipstream_main_t *sm)
{
  char why[256];

  if (vec_len (sm->threads))
    return 0;
  vec_validate_aligned (sm->threads, vlib_get_n_threads () - 1, CLIB_CACHE_LINE_BYTES);
  for (u32 i = 0; i < vec_len (sm->threads); i++)
    if (!(sm->threads[i].reframe = slip_reframe_new (&sm->config, why, sizeof why)))
      {
	while (i--)
	  slip_reframe_free (sm->threads[i].reframe);
	vec_free (sm->threads);
	return clib_error_return (0, "%s", why);
      }
  return 0;
}

static clib_error_t *
set_interface_fn (vlib_main_t *vm, unformat_input_t *input, vlib_cli_command_t *cmd)
{
  slipstream_main_t *sm = &slipstream_main;
  unformat_input_t line;
  u32 sw_if_index = ~0;
  int enable = 1, code;
  clib_error_t *error = 0;

  /* In a file of commands the next ones follow in the same input. */
  if (!unformat_user (input, unformat_line_input, &line))
    return clib_error_return (0, "an interface is needed");
  while (!error && unformat_check_input (&line) != UNFORMAT_END_OF_INPUT)
    if (unformat (&line, "%U", unformat_vnet_sw_interface, vnet_get_main (), &sw_if_index))
      ;
    else if (unformat (&line, "disable"))
      enable = 0;
    else
      error = clib_error_return (0, "unknown input '%U'", format_unformat_error, &line);
  unformat_free (&line);
  if (error)
    return error;
  if (sw_if_index == ~0)
    return clib_error_return (0, "an interface is needed");
  if (vnet_feature_is_enabled ("device-input", "slipstream", sw_if_index) == enable)
    return 0;
  if ((error = make_reframers (sm)))
    return error;
  if ((code = vnet_feature_enable_disable ("device-input", "slipstream", sw_if_index, enable, 0, 0)))
    return clib_error_return (0, "the feature can't be set: %d", code);
  sm->interfaces += enable ? 1 : -1;
  if (enable)
    /* It stays at work when the last interface has gone: packets may be inside. */
    for (u32 i = 0; i < vec_len (sm->threads); i++)
      vlib_node_set_state (vlib_get_main_by_index (i), slipstream_deadline_node.index, VLIB_NODE_STATE_POLLING);
  return 0;
}

VLIB_CLI_COMMAND (set_interface_command, static) = {
  .path = "set interface slipstream",
  .short_help = "set interface slipstream <interface> [disable]",
  .function = set_interface_fn,
};

static clib_error_t *
hold_fn (vlib_main_t *vm, unformat_input_t *input, vlib_cli_command_t *cmd)
{
  slipstream_main_t *sm = &slipstream_main;
  unformat_input_t line;
  u32 us;
  int right;

  if (!unformat_user (input, unformat_line_input, &line))
    return clib_error_return (0, "slipstream hold MICROSECONDS");
  right = unformat (&line, "%u", &us) && unformat_check_input (&line) == UNFORMAT_END_OF_INPUT;
  unformat_free (&line);
  if (!right)
    return clib_error_return (0, "slipstream hold MICROSECONDS");
  if (vec_len (sm->threads))
    return clib_error_return (0, "packets are held already: say it before the first interface");
  sm->config.hold_ns = (u64) us * 1000;
  return 0;
}

VLIB_CLI_COMMAND (hold_command, static) = {
  .path = "slipstream hold",
  .short_help = "slipstream hold <microseconds>",
  .function = hold_fn,
};

static clib_error_t *
show_fn (vlib_main_t *vm, unformat_input_t *input, vlib_cli_command_t *cmd)
{
  slipstream_main_t *sm = &slipstream_main;

  for (u32 i = 0; i < vec_len (sm->threads); i++)
    {
      slip_stats stats = { .size = sizeof stats };
      slip_reframe_stats (sm->threads[i].reframe, &stats);
      f64 packets = (f64) (stats.packets_in - stats.unclassified);
      vlib_cli_output (vm, "thread %u: %lu packets, runs of one flow %.2f -> %.2f", i, stats.packets_in,
		       packets / clib_max (stats.runs_in, 1), packets / clib_max (stats.runs_out, 1));
    }
  return 0;
}

VLIB_CLI_COMMAND (show_command, static) = {
  .path = "show slipstream",
  .short_help = "show slipstream",
  .function = show_fn,
};

static clib_error_t *
slipstream_init (vlib_main_t *vm)
{
  slip_reframe_config_init (&slipstream_main.config, sizeof slipstream_main.config);
  return 0;
}

VLIB_INIT_FUNCTION (slipstream_init);
