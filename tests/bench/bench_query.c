/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What does an answer of the query socket cost?
 *
 *   single    the round trip of one address, against one byte that a process without any work
 *             sends back over a socket of the same kind
 *   batches   4,096 addresses with a time each, the addresses spread over 1,000 code bodies by
 *             Zipf's law: addresses in a second of the daemon's CPU time
 *
 * The daemon is the real one, attached to the fake runtime that plays a recorded rundown of
 * some 10,000 methods. Where the scheduler puts two processes that take turns, and so what waking
 * the other costs, says more than all the rest: so single addresses are asked for with client and
 * server on a CPU each, and with both on the same one, the echo always where the daemon is. Both
 * alternate, a round at a time, because the machine's speed drifts; figures are medians over the
 * rounds, with the spread of the middle half.
 *
 *   bench_query BUILD_DIR RUNDOWN.nettrace [ROUNDS]
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/number.h"

#define N_HOT      1000u
#define N_SINGLES  2000u /* of one round */
#define N_BATCH    4096u
#define N_BATCHES  50u /* of one round */
#define N_REQUESTS 64u
#define MAX_ROUNDS 99u
#define START_NS   SEC_NS(20)

static char folder[] = "/tmp/bench_query.XXXXXX";
static char path[64];
static pid_t children[3]; /* runtime, daemon, echo */

static struct {
	uint64_t start, load;
	uint32_t size;
} hot[N_HOT];
static double weight[N_HOT]; /* cumulative */
static uint64_t rng = 88172645463325252u;

static void clean(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(children); i++)
		if (children[i] > 0)
			kill(children[i], SIGTERM);
	for (i = 0; i < ARRAY_SIZE(children); i++)
		if (children[i] > 0)
			waitpid(children[i], NULL, 0);
	unlink(path);
	strcat(path, ".lock");
	unlink(path);
	rmdir(folder);
}

static NORETURN void die(const char *what)
{
	fprintf(stderr, "bench_query: %s: %s\n", what, strerror(errno));
	exit(EXIT_FAILURE);
}

static uint32_t draw(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 32) * n >> 32);
}

/* 0: this process. Without a second CPU everything stays where it is. */
static void pin(pid_t pid, int cpu)
{
	cpu_set_t set;

	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	sched_setaffinity(pid, sizeof(set), &set);
}

/* -- The processes ------------------------------------------------------------------------ */

/* 0 in the child, which ends with its parent. */
static pid_t begin_child(int out_fd)
{
	pid_t pid = fork();

	if (pid < 0)
		die("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGTERM);
		dup2(out_fd, STDOUT_FILENO);
	}
	return pid;
}

static pid_t start_runtime(const char *build, const char *rundown)
{
	char program[4096], line[64] = "";
	ssize_t n;
	int fds[2];
	pid_t pid;

	snprintf(program, sizeof(program), "%s/tests/fakert", build);
	if (pipe(fds) < 0)
		die("pipe");
	pid = begin_child(fds[1]);
	if (pid == 0) {
		execl(program, program, "--version", "8.0.34", "--maps-coreclr", "--rebase",
		      "--rundown", rundown, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	n = read(fds[0], line, sizeof(line) - 1);
	if (n < 6 || strncmp(line, "ready ", 6) != 0)
		die("the fake runtime does not start");
	return pid;
}

static pid_t start_daemon(const char *build, pid_t target)
{
	char program[4096], pid_text[16];
	pid_t pid;

	snprintf(program, sizeof(program), "%s/clrsymd", build);
	snprintf(pid_text, sizeof(pid_text), "%d", (int)target);
	pid = begin_child(STDERR_FILENO);
	if (pid == 0) {
		execl(program, program, "--map", "off", "--socket", path, "-p", pid_text,
		      (char *)NULL);
		_exit(127);
	}
	return pid;
}

static int try_connect(const char *to)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, to, strlen(to) + 1);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

static void echo(int fd)
{
	char c;

	while (read(fd, &c, 1) == 1 && write(fd, &c, 1) == 1)
		;
}

/* Returns the client's end; made by bind, listen and connect like the daemon's. */
static int start_echo(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s/echo", folder);
	if (listening < 0 || bind(listening, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    listen(listening, 1) < 0)
		die("echo");
	children[2] = begin_child(STDERR_FILENO);
	if (children[2] == 0) {
		echo(accept(listening, NULL, NULL));
		_exit(0);
	}
	close(listening);
	fd = try_connect(address.sun_path);
	unlink(address.sun_path);
	if (fd < 0)
		die("echo");
	return fd;
}

/* -- Calls -------------------------------------------------------------------------------- */

static char reply[8 << 20];

/* The length of the reply, the NUL not counted. */
static size_t call(int fd, const void *request, size_t n)
{
	size_t at = 0;
	ssize_t got;

	while (n) {
		got = send(fd, request, n, MSG_NOSIGNAL);
		if (got <= 0)
			die("send");
		request = (const char *)request + got;
		n -= (size_t)got;
	}
	do {
		got = recv(fd, reply + at, sizeof(reply) - at, 0);
		if (got <= 0)
			die("recv");
		at += (size_t)got;
	} while (reply[at - 1]);
	return at - 1;
}

/* Until the daemon knows the code: the bodies that are asked for are among what it lists. */
static size_t wait_until_known(int fd, pid_t target)
{
	uint64_t end = clock_now_ns() + START_NS;
	char request[128];
	json_t *msg, *list;
	size_t i, n = 0;

	n = (size_t)snprintf(request, sizeof(request),
			     "{\"method\":\"org.clrsym.Symbols.ListMethods\","
			     "\"parameters\":{\"pid\":%d}}",
			     (int)target) +
	    1;
	for (;;) {
		msg = json_loadb(reply, call(fd, request, n), 0, NULL);
		list = json_object_get(json_object_get(msg, "parameters"), "methods");
		if (json_array_size(list) >= N_HOT)
			break;
		json_decref(msg);
		if (clock_now_ns() > end)
			die("the code does not become known");
		usleep(50000);
	}
	for (i = 0; i < N_HOT; i++) {
		const json_t *m = json_array_get(list, i * json_array_size(list) / N_HOT);

		hot[i].start = strtoull(json_string_value(json_object_get(m, "start")), NULL, 16);
		hot[i].size = (uint32_t)json_integer_value(json_object_get(m, "size"));
		hot[i].load = (uint64_t)json_integer_value(json_object_get(m, "load"));
	}
	n = json_array_size(list);
	json_decref(msg);
	return n;
}

static void set_weights(void)
{
	double sum = 0;
	uint32_t i;

	for (i = 0; i < N_HOT; i++)
		weight[i] = sum += 1.0 / (i + 1);
}

static uint32_t draw_hot(void)
{
	double at = weight[N_HOT - 1] * draw(1u << 30) / (1u << 30);
	uint32_t low = 0, high = N_HOT - 1;

	while (low < high) {
		uint32_t mid = (low + high) / 2;

		if (weight[mid] < at)
			low = mid + 1;
		else
			high = mid;
	}
	/* the hot ones are not neighbours */
	return low * 617 % N_HOT;
}

static void make_request(struct buf *out, pid_t target, uint32_t n)
{
	uint64_t now = clock_now_ns();
	_cleanup_buf_ struct buf times = { .cap = 1 << 20 };
	uint32_t i;

	buf_init(out, 1 << 20);
	buf_printf(out,
		   "{\"method\":\"org.clrsym.Symbols.Resolve\",\"parameters\":{\"pid\":%d,"
		   "\"addresses\":[",
		   (int)target);
	for (i = 0; i < n; i++) {
		uint32_t b = draw_hot();
		uint64_t since = now > hot[b].load ? (now - hot[b].load) / 1000 : 0;

		buf_printf(out, "%s%" PRIu64, i ? "," : "", hot[b].start + draw(hot[b].size));
		buf_printf(&times, "%s%" PRIu64, i ? "," : "",
			   now - 1000 * (uint64_t)draw((uint32_t)MIN(since, 1000000u)));
	}
	buf_printf(out, "],\"times\":[%.*s]}}", (int)times.len, (const char *)times.data);
	buf_putc(out, '\0');
	if (out->error || times.error)
		die("a request");
}

/* -- Measuring ---------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

struct series {
	double v[MAX_ROUNDS];
	size_t n;
};

static void show(const char *what, struct series *s, const char *unit)
{
	qsort(s->v, s->n, sizeof(*s->v), compare);
	printf("%s %.4g (%.4g to %.4g)%s", what, s->v[s->n / 2], s->v[s->n / 4], s->v[s->n * 3 / 4],
	       unit);
}

static double cpu_ns(pid_t pid)
{
	char name[64];
	double ns = 0;
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%d/schedstat", (int)pid);
	f = fopen(name, "re");
	if (!f || fscanf(f, "%lf", &ns) != 1)
		die(name);
	fclose(f);
	return ns;
}

static double echo_round(int fd)
{
	uint64_t begin = clock_now_ns();
	uint32_t i;
	char c = 0;

	for (i = 0; i < N_SINGLES; i++)
		if (write(fd, &c, 1) != 1 || read(fd, &c, 1) != 1)
			die("echo");
	return (double)(clock_now_ns() - begin) / N_SINGLES / 1000;
}

static double single_round(int fd, const struct buf *requests)
{
	uint64_t begin = clock_now_ns();
	uint32_t i;

	for (i = 0; i < N_SINGLES; i++)
		call(fd, requests[i % N_REQUESTS].data, requests[i % N_REQUESTS].len);
	return (double)(clock_now_ns() - begin) / N_SINGLES / 1000;
}

static void measure_single(int fd, int echo_fd, const struct buf *requests, const char *where,
			   size_t rounds)
{
	struct series ours = { 0 }, bare = { 0 }, ratio = { 0 };
	size_t i;

	single_round(fd, requests); /* warm */
	echo_round(echo_fd);
	for (i = 0; i < rounds; i++) {
		bare.v[bare.n++] = echo_round(echo_fd);
		ours.v[ours.n++] = single_round(fd, requests);
		ratio.v[ratio.n++] = ours.v[i] / bare.v[i];
	}
	printf("single address, %s: ", where);
	show("round trip", &ours, " us");
	show(", of a bare byte", &bare, " us");
	show(", ratio", &ratio, " (budget: 2)\n");
}

static void measure_singles(int fd, pid_t target, size_t rounds)
{
	struct buf requests[N_REQUESTS];
	int echo_fd = start_echo();
	size_t i;

	for (i = 0; i < N_REQUESTS; i++)
		make_request(&requests[i], target, 1);
	pin(0, 0);
	pin(children[1], 0);
	pin(children[2], 0);
	measure_single(fd, echo_fd, requests, "one CPU", rounds);
	pin(children[1], 1);
	pin(children[2], 1);
	measure_single(fd, echo_fd, requests, "two CPUs", rounds);
	for (i = 0; i < N_REQUESTS; i++)
		buf_deinit(&requests[i]);
	close(echo_fd);
}

static void measure_batches(int fd, pid_t target, size_t rounds)
{
	struct buf requests[N_REQUESTS];
	struct series per_cpu = { 0 }, per_second = { 0 };
	size_t i, k;

	for (i = 0; i < N_REQUESTS; i++)
		make_request(&requests[i], target, N_BATCH);
	for (i = 0; i <= rounds; i++) {
		uint64_t begin = clock_now_ns();
		double cpu = cpu_ns(children[1]);

		for (k = 0; k < N_BATCHES; k++)
			call(fd, requests[k % N_REQUESTS].data, requests[k % N_REQUESTS].len);
		if (strstr(reply, "\"methods\":[]"))
			die("nothing found");
		if (i == 0)
			continue; /* warm */
		cpu = cpu_ns(children[1]) - cpu;
		per_cpu.v[per_cpu.n++] = N_BATCH * N_BATCHES * 1e3 / cpu;
		per_second.v[per_second.n++] =
			N_BATCH * N_BATCHES * 1e3 / (double)(clock_now_ns() - begin);
	}
	show("batches of 4,096, Zipf: in a second of the daemon's CPU", &per_cpu,
	     " million addresses (budget: 0.5)");
	show(", in a second of the client's", &per_second, " million\n");
	for (i = 0; i < N_REQUESTS; i++)
		buf_deinit(&requests[i]);
}

int main(int argc, char **argv)
{
	uint64_t rounds = 11, end;
	size_t n;
	int fd;

	if (argc < 3 || argc > 4 || (argc == 4 && !parse_u64(argv[3], MAX_ROUNDS, &rounds))) {
		fprintf(stderr, "usage: bench_query BUILD_DIR RUNDOWN.nettrace [ROUNDS]\n");
		return 2;
	}
	if (!mkdtemp(folder))
		die("mkdtemp");
	snprintf(path, sizeof(path), "%s/q", folder);
	atexit(clean);
	children[0] = start_runtime(argv[1], argv[2]);
	children[1] = start_daemon(argv[1], children[0]);
	end = clock_now_ns() + START_NS;
	while ((fd = try_connect(path)) < 0) {
		if (clock_now_ns() > end)
			die("the daemon does not listen");
		usleep(10000);
	}
	n = wait_until_known(fd, children[0]);
	printf("%zu code bodies\n", n);
	set_weights();
	measure_singles(fd, children[0], rounds);
	measure_batches(fd, children[0], rounds);
	close(fd);
	return 0;
}
