/* The node of examples/vpp/slipstream.c where VPP's time runs backwards, as it does where a thread learns the frequency of
 * its clock anew: packets of a flow stay in order, all are held and come out, and none waits for the time to catch up.
 * Its commands in a file of commands. */
#include "vpp_stub.h"

#include "../examples/vpp/slipstream.c"

static void
check (int truth, const char *text)
{
  if (!truth)
    {
      fprintf (stderr, "vpp_time: %s\n", text);
      exit (1);
    }
}

/* A datagram of one of two flows. */
static void
packet (u32 index, u8 flow)
{
  u8 head[] = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0,
		10, 0, 0, 1, 10, 0, 0, 2, 4, flow, 0, 80, 0, 26, 0, 0 };
  __builtin_memcpy (stub_buffers[index].data, head, sizeof head);
  stub_buffers[index].current_length = 60;
}

/* A command reads its own line of a file of commands and no more. */
static void
commands (void)
{
  static const struct
  {
    clib_error_t *(*function) (vlib_main_t *, unformat_input_t *, vlib_cli_command_t *);
    const char *text, *left;
    int right;
  } cases[] = {
    { hold_fn, " 64\nset interface slipstream eth1\n", "\nset interface slipstream eth1\n", 1 },
    { hold_fn, " 64 ms\nshow slipstream", "\nshow slipstream", 0 },
    { hold_fn, "\n64\n", "\n64\n", 0 },
    { set_interface_fn, " eth1\nset interface state eth1 up\n", "\nset interface state eth1 up\n", 1 },
    { set_interface_fn, " eth1 disable", "", 1 },
    { set_interface_fn, " eth1 on\nshow slipstream", "\nshow slipstream", 0 },
    { set_interface_fn, "\neth1", "\neth1", 0 },
  };
  for (u32 i = 0; i < ARRAY_LEN (cases); i++)
    {
      unformat_input_t input = { cases[i].text, cases[i].text + strlen (cases[i].text) };
      u32 before = stub_features;
      check ((cases[i].function (&stub_main, &input, 0) == 0) == cases[i].right, cases[i].text);
      check (!strcmp (input.at, cases[i].left), "a command reads beyond its line, or less than it");
      check (stub_features - before <= (u32) cases[i].right, "a wrong command does something");
    }
}

int
main (void)
{
  vlib_main_t *vm = &stub_main;
  vlib_node_runtime_t node = { 0 };
  u32 pushed = 0;

  check (!stub_init (vm), "no settings");
  commands ();
  check (!make_reframers (&slipstream_main), "no reframers");
  f64 hold = slipstream_main.config.hold_ns * 1e-9;
  /* Steps of the time between bursts: on, back by a little and by much, on again. */
  f64 steps[] = { 1, hold / 8, -hold / 4, hold / 8, -0.5, hold / 8, hold / 8 };
  for (u32 i = 0; i < ARRAY_LEN (steps); i++)
    {
      vlib_frame_t frame = { .n_vectors = 4 };
      stub_time += steps[i];
      for (u32 n = 0; n < frame.n_vectors; n++, pushed++)
	{
	  packet (pushed, pushed % 2);
	  frame.vector[n] = pushed;
	}
      slipstream_node_fn (vm, &node, &frame);
    }
  /* Two holds later nothing is inside, though the time is not yet what it was. */
  for (u32 i = 0; i < 32; i++)
    {
      stub_time += hold / 16;
      slipstream_deadline_node_fn (vm, &node, 0);
    }
  check (!stub_refused, "packets were not held");
  check (stub_n_sent == pushed, "packets are still inside");
  u32 next[2] = { 0, 1 };
  for (u32 i = 0; i < stub_n_sent; i++)
    {
      u32 flow = stub_sent[i] % 2;
      check (stub_sent[i] == next[flow], "a packet overtook another of its flow");
      next[flow] += 2;
    }
  check (!show_fn (vm, 0, 0), "show");
  return slip_reframe_free (slipstream_main.threads[0].reframe);
}
