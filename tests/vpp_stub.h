/* As much of VPP as examples/vpp/slipstream.c uses, so that it can be compiled and run without VPP: one thread, a
 * clock that a test sets, and packets that leave into a list. Its names and types are VPP's. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef int32_t i32;
typedef uint64_t u64;
typedef uintptr_t uword;
typedef double f64;

#define VPP_BUILD_VER "stub"
#define CLIB_CACHE_LINE_BYTES 64
#define CLIB_CACHE_LINE_ALIGN_MARK(mark) u8 mark[0] __attribute__ ((aligned (64)))
#define STATIC_ASSERT(truth, text) _Static_assert (truth, text)
#define PREDICT_FALSE(x) (x)
#define ARRAY_LEN(x) (sizeof (x) / sizeof (x)[0])
#define clib_max(a, b) ((a) > (b) ? (a) : (b))
#define static_always_inline static inline
#define VLIB_FRAME_SIZE 256

typedef struct
{
  u16 thread_index;
} vlib_main_t;
typedef struct
{
  int unused;
} vlib_node_runtime_t;
typedef struct
{
  u32 n_vectors;
  u32 vector[VLIB_FRAME_SIZE];
} vlib_frame_t;
typedef struct
{
  u16 current_length;
  u8 data[64];
} vlib_buffer_t;
typedef struct
{
  const char *text;
} clib_error_t;
typedef struct
{
  int unused;
} vnet_main_t;
typedef struct
{
  const char *at, *end;
} unformat_input_t;

/* What a test has in its hands. */
static vlib_buffer_t stub_buffers[1024];
static u32 stub_sent[1024], stub_n_sent, stub_refused;
static f64 stub_time;
static vlib_main_t stub_main;
static u32 stub_features;
static clib_error_t stub_error;

static inline f64
vlib_time_now (vlib_main_t *vm)
{
  return (void) vm, stub_time;
}
static inline void
vlib_get_buffers (vlib_main_t *vm, u32 *index, vlib_buffer_t **b, u32 n)
{
  (void) vm;
  while (n--)
    b[n] = &stub_buffers[index[n]];
}
static inline void
vlib_buffer_enqueue_to_next (vlib_main_t *vm, vlib_node_runtime_t *node, u32 *index, u16 *nexts, u32 n)
{
  (void) vm, (void) node, (void) nexts;
  for (u32 i = 0; i < n; i++)
    stub_sent[stub_n_sent++] = index[i];
}
#define vlib_frame_vector_args(frame) ((void *) (frame)->vector)
#define vlib_buffer_get_current(b) ((void *) (b)->data)
#define vlib_buffer_length_in_chain(vm, b) ((b)->current_length)
#define vnet_feature_next_u16(next, b) ((void) (b), *(next) = 0)
#define vlib_node_increment_counter(vm, node, counter, n) (stub_refused += (n))

/* Vectors: their length stands before them. */
#define vec_len(v) ((v) ? ((u32 *) (v))[-16] : 0u)
#define vec_elt_at_index(v, i) (&(v)[i])
#define vec_validate_aligned(v, i, align) \
  ((v) = (void *) ((u8 *) aligned_alloc (align, (align) + ((i) + 1) * sizeof (v)[0]) + (align)), \
   __builtin_memset ((v), 0, ((i) + 1) * sizeof (v)[0]), ((u32 *) (v))[-16] = (i) + 1)
#define vec_free(v) (free ((u8 *) (v) - 64), (v) = 0)

/* Registrations compile, and do nothing. */
typedef struct vlib_cli_command_t
{
  const char *path, *short_help;
  clib_error_t *(*function) (vlib_main_t *, unformat_input_t *, struct vlib_cli_command_t *);
} vlib_cli_command_t;
typedef struct
{
  const char *name, *sibling_of;
  u32 vector_size, type, state, n_errors, index;
  char **error_strings;
} vlib_node_registration_t;
typedef struct
{
  const char *arc_name, *node_name;
  char **runs_before;
} vnet_feature_registration_t;
enum
{
  VLIB_NODE_TYPE_INTERNAL,
  VLIB_NODE_TYPE_INPUT,
  VLIB_NODE_STATE_DISABLED,
  VLIB_NODE_STATE_POLLING,
  UNFORMAT_END_OF_INPUT,
};
#define VLIB_PLUGIN_REGISTER() static const struct { const char *version, *description; } stub_plugin __attribute__ ((unused))
#define VLIB_REGISTER_NODE(node) vlib_node_registration_t node
#define VLIB_NODE_FN(node) uword node##_fn
#define VNET_FEATURES(...) ((char *[]){ __VA_ARGS__, 0 })
#define VNET_FEATURE_INIT(name, kind) kind vnet_feature_registration_t stub_feature_##name __attribute__ ((unused))
#define VLIB_CLI_COMMAND(name, kind) kind vlib_cli_command_t name __attribute__ ((unused))
#define VLIB_INIT_FUNCTION(f) static clib_error_t *(*stub_init) (vlib_main_t *) = f
#define vlib_get_n_threads() 1u
#define vlib_get_main_by_index(i) ((void) (i), &stub_main)
#define vlib_node_set_state(vm, node, state) ((void) (vm))
#define vnet_get_main() ((vnet_main_t *) 0)
#define vnet_feature_is_enabled(arc, node, interface) 0
#define vnet_feature_enable_disable(...) (stub_features++, 0)
#define unformat_line_input 0
#define unformat_user(input, function, line) stub_line (input, line)
#define unformat_free(input) ((void) ((input)->at = (input)->end = 0))
#define unformat_vnet_sw_interface ((void *) 0)
#define format_unformat_error ((void *) 0)
#define vlib_cli_output(vm, ...) ((void) (vm), (void) printf (__VA_ARGS__), (void) puts (""))
#define clib_error_return(e, ...) (stub_nothing (__VA_ARGS__), &stub_error)

static inline int
stub_nothing (const char *text, ...)
{
  return (void) text, 0;
}

/* Input is text; a newline is a space, as it is for VPP. Its end is reached where nothing but spaces is left. */
static inline int
unformat_check_input (unformat_input_t *input)
{
  while (input->at < input->end && (*input->at == ' ' || *input->at == '\n'))
    input->at++;
  return input->at < input->end ? 0 : UNFORMAT_END_OF_INPUT;
}
/* What is left of a line, without the spaces before it; fails where nothing is. */
static inline int
stub_line (unformat_input_t *input, unformat_input_t *line)
{
  while (input->at < input->end && *input->at == ' ')
    input->at++;
  line->at = input->at;
  while (input->at < input->end && *input->at != '\n')
    input->at++;
  line->end = input->at;
  return line->at < line->end;
}
/* A word, a number ("%u"), or an interface as in "eth1" ("%U"). */
static inline int
unformat (unformat_input_t *input, const char *form, ...)
{
  va_list more;
  int width = 0;
  if (unformat_check_input (input) == UNFORMAT_END_OF_INPUT)
    return 0;
  size_t left = input->end - input->at;
  va_start (more, form);
  if (form[0] != '%')
    width = left >= strlen (form) && !strncmp (input->at, form, strlen (form)) ? (int) strlen (form) : 0;
  else if (form[1] == 'u')
    sscanf (input->at, "%u%n", va_arg (more, u32 *), &width);
  else
    {
      (void) va_arg (more, void *), (void) va_arg (more, vnet_main_t *);
      sscanf (input->at, "eth%u%n", va_arg (more, u32 *), &width);
    }
  va_end (more);
  input->at += width;
  return width > 0;
}
