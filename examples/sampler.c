/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sampling profiler for one .NET process, of the parts that are needed for one: a BPF program on
 * a perf event takes stacks, libclrsym names them, folded stacks come out (for flamegraph.pl,
 * speedscope, ...).
 *
 *     sampler PID [SECONDS [HZ]] >out.folded
 *
 * The order of things matters. A stack is resolved at its own time, and not at once: the runtime
 * tells of new code up to some 100 ms late. So stacks are kept until clrsym_known_until() has
 * passed them, and named in one call then. What is still young at the end waits in the library.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <clrsym.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sampler.h"

#define MAX_KEPT  65536
#define NAME_SIZE 256
#define WAIT_MS   500

struct sampler {
	struct clrsym *clrsym;
	struct clrsym_process *process;
	struct bpf_object *object;
	struct ring_buffer *ring;
	struct stack *kept[MAX_KEPT];
	size_t n_kept;
	char **folded; /* a line a stack */
	size_t n_folded;
	unsigned long long n_frames, n_named, n_lost;
};

static volatile sig_atomic_t stop;

static void on_signal(int sig)
{
	(void)sig;
	stop = 1;
}

static unsigned long long now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (unsigned long long)ts.tv_sec * 1000000000u + (unsigned long long)ts.tv_nsec;
}

static void die(const char *what, int err)
{
	fprintf(stderr, "sampler: %s: %s\n", what, strerror(err < 0 ? -err : err));
	exit(1);
}

static void die_clrsym(struct sampler *s, const char *what, int err)
{
	char detail[256];

	clrsym_error_detail(s->clrsym, detail, sizeof(detail));
	fprintf(stderr, "sampler: %s: %s%s%s\n", what, clrsym_strerror(err), *detail ? ": " : "",
		detail);
	exit(1);
}

/* -- Names -------------------------------------------------------------------------------- */

static size_t put_frame(char *line, size_t size, const struct clrsym_symbol *sym)
{
	char reason[64];
	int n;

	if (sym->reason == CLRSYM_NAMED) {
		n = snprintf(line, size, "%.*s", (int)sym->short_len, sym->name);
	} else {
		clrsym_reason_format(sym, reason, sizeof(reason));
		n = snprintf(line, size, "[%s]", reason);
	}
	return (size_t)n < size ? (size_t)n : size - 1;
}

/* The folded form of a stack: root first, frames separated by semicolons. */
static char *fold(struct sampler *s, const struct clrsym_symbol *symbols, size_t n)
{
	size_t size = n * (NAME_SIZE + 1) + 1, len = 0;
	char *line = malloc(size);

	if (!line)
		die("folding", ENOMEM);
	line[0] = '\0';
	while (n--) {
		len += put_frame(line + len, size - len, &symbols[n]);
		if (n)
			line[len++] = ';';
		s->n_frames++;
		s->n_named += symbols[n].reason == CLRSYM_NAMED;
	}
	line[len] = '\0';
	return line;
}

static void name_stack(struct sampler *s, const struct stack *stack, unsigned int wait_ms)
{
	static char names[MAX_FRAMES][NAME_SIZE];
	struct clrsym_symbol symbols[MAX_FRAMES];
	struct clrsym_query queries[MAX_FRAMES] = { 0 };
	struct clrsym_resolve_opts opts = { .sz = sizeof(opts), .wait_ms = wait_ms };
	size_t n = (size_t)stack->n_bytes / sizeof(stack->frames[0]), i;
	char **folded;
	int r;

	for (i = 0; i < n; i++) {
		queries[i].addr = stack->frames[i];
		queries[i].time_ns = stack->time_ns;
		/* all but the innermost are return addresses */
		queries[i].flags = i ? CLRSYM_CALLER : 0;
		clrsym_symbol_init(&symbols[i], names[i], NAME_SIZE, NULL, 0);
	}
	r = clrsym_resolve(s->process, queries, symbols, n, &opts);
	/* a daemon that went away leaves its last snapshot: no reason to stop */
	if (r < 0 && r != -ECONNREFUSED && r != -ECONNRESET)
		die_clrsym(s, "resolving", r);
	folded = realloc(s->folded, (s->n_folded + 1) * sizeof(*folded));
	if (!folded)
		die("folding", ENOMEM);
	s->folded = folded;
	s->folded[s->n_folded++] = fold(s, symbols, n);
}

/* Names the stacks up to this time. */
static void name_stacks(struct sampler *s, unsigned long long until, unsigned int wait_ms)
{
	size_t i, n = 0;

	for (i = 0; i < s->n_kept; i++) {
		if (s->kept[i]->time_ns > until) {
			s->kept[n++] = s->kept[i];
			continue;
		}
		name_stack(s, s->kept[i], wait_ms);
		free(s->kept[i]);
	}
	s->n_kept = n;
}

static int compare_lines(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void print_folded(struct sampler *s)
{
	size_t i, count = 0;

	if (s->n_folded)
		qsort(s->folded, s->n_folded, sizeof(*s->folded), compare_lines);
	for (i = 0; i < s->n_folded; i++) {
		count++;
		if (i + 1 < s->n_folded && strcmp(s->folded[i], s->folded[i + 1]) == 0)
			continue;
		printf("%s %zu\n", s->folded[i], count);
		count = 0;
	}
}

/* -- Stacks ------------------------------------------------------------------------------- */

static int keep_stack(void *data, void *record, size_t size)
{
	const struct stack *stack = record;
	struct sampler *s = data;

	if (size < sizeof(*stack) || stack->n_bytes <= 0 || s->n_kept == MAX_KEPT) {
		s->n_lost++;
		return 0;
	}
	s->kept[s->n_kept] = malloc(sizeof(*stack));
	if (!s->kept[s->n_kept])
		die("keeping a stack", ENOMEM);
	memcpy(s->kept[s->n_kept++], stack, sizeof(*stack));
	return 0;
}

/* The compiled half lies beside this program. */
static void object_path(char *path, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", path, size);

	if (n < 0 || (size_t)n + sizeof(".bpf.o") > size)
		die("/proc/self/exe", n < 0 ? errno : ENAMETOOLONG);
	memcpy(path + n, ".bpf.o", sizeof(".bpf.o"));
}

static void set_target(struct bpf_object *object, pid_t pid)
{
	struct bpf_map *map = bpf_object__find_map_by_name(object, ".rodata.target");
	struct target target = { .pid = (unsigned int)pid };
	struct stat st;
	int r;

	if (stat("/proc/self/ns/pid", &st) < 0)
		die("/proc/self/ns/pid", errno);
	target.ns_dev = st.st_dev;
	target.ns_ino = st.st_ino;
	r = map ? bpf_map__set_initial_value(map, &target, sizeof(target)) : -ENOENT;
	if (r < 0)
		die("setting the target", r);
}

/* One event a CPU: threads that come later are sampled, too. */
static void attach(struct bpf_program *program, unsigned int hz)
{
	struct perf_event_attr attr = {
		.size = sizeof(attr),
		.type = PERF_TYPE_SOFTWARE,
		.config = PERF_COUNT_SW_CPU_CLOCK,
		.sample_freq = hz,
		.freq = 1,
	};
	int cpu, fd, n_cpus = libbpf_num_possible_cpus();

	for (cpu = 0; cpu < n_cpus; cpu++) {
		fd = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
		if (fd < 0 && errno == ENODEV)
			continue; /* this one is off */
		if (fd < 0)
			die("perf_event_open", errno);
		/* both live as long as this process */
		if (!bpf_program__attach_perf_event(program, fd))
			die("attaching to a perf event", errno);
	}
}

static void start_sampling(struct sampler *s, pid_t pid, unsigned int hz)
{
	char path[4096];
	int r;

	object_path(path, sizeof(path));
	s->object = bpf_object__open_file(path, NULL);
	if (!s->object)
		die(path, errno);
	set_target(s->object, pid);
	r = bpf_object__load(s->object);
	if (r < 0)
		die("loading the BPF program", r);
	s->ring = ring_buffer__new(bpf_object__find_map_fd_by_name(s->object, "stacks"), keep_stack,
				   s, NULL);
	if (!s->ring)
		die("ring buffer", errno);
	attach(bpf_object__find_program_by_name(s->object, "take_stack"), hz);
}

/* -- Main --------------------------------------------------------------------------------- */

static void sample(struct sampler *s, unsigned int seconds)
{
	unsigned long long end = now_ns() + seconds * 1000000000ull;

	while (!stop && now_ns() < end) {
		ring_buffer__poll(s->ring, 100);
		name_stacks(s, clrsym_known_until(s->process), 0);
	}
	ring_buffer__consume(s->ring);
	name_stacks(s, ~0ull, WAIT_MS);
}

int main(int argc, char **argv)
{
	struct clrsym_process_opts opts = { .sz = sizeof(opts), .flags = CLRSYM_PROCESS_ATTACH };
	struct clrsym_open_opts open_opts = { .sz = sizeof(open_opts),
					      .socket_path = getenv("CLRSYM_SOCKET") };
	unsigned int seconds = argc > 2 ? (unsigned int)atoi(argv[2]) : 10;
	unsigned int hz = argc > 3 ? (unsigned int)atoi(argv[3]) : 99;
	static struct sampler s;
	pid_t pid = argc > 1 ? atoi(argv[1]) : 0;
	int r;

	if (pid <= 0 || !seconds || !hz || argc > 4) {
		fprintf(stderr, "usage: sampler PID [SECONDS [HZ]]\n");
		return 2;
	}
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
	r = clrsym_open(&open_opts, &s.clrsym);
	if (r == 0)
		r = clrsym_process_open(s.clrsym, pid, 0, &opts, &s.process);
	if (r < 0)
		die_clrsym(&s, argv[1], r);
	start_sampling(&s, pid, hz);
	sample(&s, seconds);
	print_folded(&s);
	fprintf(stderr, "sampler: %zu stacks, %llu of %llu frames have a managed name, %llu lost\n",
		s.n_folded, s.n_named, s.n_frames, s.n_lost);
	clrsym_process_close(s.process);
	clrsym_close(s.clrsym);
	return 0;
}
