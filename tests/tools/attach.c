/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * attach: src/target driven from stdin, for tests and benches.
 *
 *   attach [--retired-mb N] [--buffer-mb N] [--gap-s N] [--lines] [--code] PID
 *
 * prints "complete MS METHODS" when the first rundown is over, "ended WORD TEXT" at the end, and answers
 *
 *   lookup ADDR NS   "hit START SIZE IL NAME" or "miss REASON" (NS 0: now; IL -1: none)
 *   keep ADDR        "ok" or "error WHY": reads the code bytes of the body that is there now
 *   bodies           "body START SIZE LOAD UNLOAD NAME BYTES" for each that is remembered, with "-WHY"
 *                    in place of bytes that are not to be had; then "end BYTES BODIES FULL GONE UNREADABLE";
 *                    with --code also after "ended"
 *   widen            "ok": a session with IL maps takes over
 *   status           "status KEY=VALUE..."
 *   quit             stops in good order
 */
/* clang-format on */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "target/target.h"

struct attach {
	struct loop *loop;
	struct pool pool;
	struct target *target;
	struct loop_fd in;
	struct buf line;
	uint64_t start_ns;
	bool code;
};

static void on_changed(struct target *target UNUSED, void *data UNUSED)
{
}

static void on_complete(struct target *target, void *data)
{
	struct attach *a = data;
	struct codemap_stats stats;

	codemap_get_stats(target_map(target), &stats);
	printf("complete %.3f %zu\n", (double)(clock_now_ns() - a->start_ns) / 1e6, stats.live);
	fflush(stdout);
}

static int print_body(void *data, const struct codemap_body *body)
{
	struct attach *a = data;
	_cleanup_buf_ struct buf name = { .cap = SIZE_MAX };
	struct codemap_info info;
	const uint8_t *bytes;
	uint32_t i;
	char *blank;
	int r;

	codemap_body_info(target_map(a->target), body, &info);
	names_append(&name, &info.name, NAMES_SHORT, false);
	for (blank = (char *)(uintptr_t)buf_cstr(&name); (blank = strchr(blank, ' '));)
		*blank = '_';
	printf("body %" PRIx64 " %" PRIu32 " %" PRIu64 " %" PRIu64 " %s ", info.start, info.size,
	       info.load, info.unload, name.len ? buf_cstr(&name) : "?");
	r = target_code(a->target, &info, &bytes);
	if (r)
		printf("-%s", code_error_text(r));
	for (i = 0; !r && i < info.size; i++)
		printf("%02x", bytes[i]);
	putchar('\n');
	return 0;
}

static void do_bodies(struct attach *a)
{
	struct code_stats s;

	codemap_each(target_map(a->target), print_body, a);
	target_get_code_stats(a->target, &s);
	printf("end %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", s.bytes,
	       s.bodies, s.full, s.gone, s.unreadable);
}

static void on_ended(struct target *target, enum target_end end, void *data)
{
	struct attach *a = data;
	static const char *const words[] = { "", "stopped", "exited", "failed" };

	printf("ended %s %s\n", words[end], target_end_text(target));
	if (a->code)
		do_bodies(a);
	fflush(stdout);
	loop_stop(a->loop, end == TARGET_FAILED);
}

static void do_lookup(struct attach *a, uint64_t addr, uint64_t time)
{
	struct codemap *map = target_map(a->target);
	_cleanup_buf_ struct buf name = { .cap = SIZE_MAX };
	enum codemap_miss miss = CODEMAP_HIT;
	const struct codemap_body *body;
	struct codemap_info info;
	uint32_t il;

	body = time ? codemap_lookup_at(map, addr, time, &miss) : codemap_lookup(map, addr, &miss);
	if (!body) {
		printf("miss %s\n", codemap_miss_text(miss));
		return;
	}
	codemap_body_info(map, body, &info);
	names_append(&name, &info.name, NAMES_SHORT, true);
	if (codemap_il_lookup(map, body, (uint32_t)(addr - info.start), &il))
		printf("hit %" PRIx64 " %" PRIu32 " -1 %s\n", info.start, info.size,
		       buf_cstr(&name));
	else
		printf("hit %" PRIx64 " %" PRIu32 " %d %s\n", info.start, info.size,
		       (int)(int32_t)il, buf_cstr(&name));
}

static void do_keep(struct attach *a, uint64_t addr)
{
	struct codemap *map = target_map(a->target);
	const struct codemap_body *body = codemap_lookup(map, addr, NULL);
	struct codemap_info info;
	int r;

	if (!body) {
		printf("error no body\n");
		return;
	}
	codemap_body_info(map, body, &info);
	r = target_keep_body(a->target, &info);
	printf(r ? "error %s\n" : "ok\n", code_error_text(r));
}

static void do_status(struct attach *a)
{
	struct target_status s;
	struct codemap_stats m;

	target_get_status(a->target, &s);
	codemap_get_stats(target_map(a->target), &m);
	printf("status state=%d rundowns=%u retries=%u complete=%d rundown_ns=%" PRIu64
	       " rundown_bytes=%" PRIu64 " buffer_mb=%u gaps=%" PRIu64 " lost=%" PRIu64
	       " healed=%" PRIu64 " live=%zu retired=%zu il_maps=%zu expired=%" PRIu64
	       " implied=%" PRIu64 " unmatched=%" PRIu64 " bytes=%zu name_bytes=%zu"
	       " known_until=%" PRIu64 " now=%" PRIu64 " max_delay_ns=%" PRIu64
	       " incarnation=%u late=%" PRIu64 "\n",
	       (int)s.state, s.rundowns, s.rundown_retries, s.rundown_complete, s.rundown_ns,
	       s.rundown_bytes, s.rundown_buffer_mb, s.gaps, s.lost, s.gaps_healed, m.live,
	       m.retired, m.il_maps, m.expired, m.implied_retirements, m.unmatched_unloads, m.bytes,
	       m.name_bytes, target_known_until(a->target), clock_now_ns(), s.max_delay_ns,
	       s.incarnation, s.late);
}

static void do_line(struct attach *a, const char *line)
{
	uint64_t addr, time;

	if (sscanf(line, "lookup %" SCNx64 " %" SCNu64, &addr, &time) == 2) {
		do_lookup(a, addr, time);
	} else if (sscanf(line, "keep %" SCNx64, &addr) == 1) {
		do_keep(a, addr);
	} else if (strcmp(line, "bodies") == 0) {
		do_bodies(a);
	} else if (strcmp(line, "status") == 0) {
		do_status(a);
	} else if (strcmp(line, "widen") == 0) {
		printf(target_widen(a->target) < 0 ? "error\n" : "ok\n");
	} else if (strcmp(line, "quit") == 0) {
		target_stop(a->target, DEFAULT_STOP_DEADLINE_NS);
	} else {
		printf("error\n");
	}
}

static void on_input(struct loop_fd *source, uint32_t events UNUSED)
{
	struct attach *a = container_of(source, struct attach, in);
	uint8_t *newline;
	ssize_t n;

	if (buf_reserve(&a->line, KIB(64)) < 0)
		return;
	n = read(source->fd, a->line.data + a->line.len, KIB(64));
	if (n <= 0) {
		loop_fd_del(source);
		target_stop(a->target, DEFAULT_STOP_DEADLINE_NS);
		return;
	}
	a->line.len += (size_t)n;
	while ((newline = memchr(a->line.data, '\n', a->line.len))) {
		size_t len = (size_t)(newline - a->line.data);

		*newline = '\0';
		do_line(a, (const char *)a->line.data);
		buf_consume(&a->line, len + 1);
	}
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const struct target_callbacks callbacks = {
		.changed = on_changed,
		.complete = on_complete,
		.ended = on_ended,
	};
	static const struct option options[] = {
		{ "retired-mb", required_argument, NULL, 'r' },
		{ "buffer-mb", required_argument, NULL, 'b' },
		{ "gap-s", required_argument, NULL, 'g' },
		{ "lines", no_argument, NULL, 'l' },
		{ "code", no_argument, NULL, 'c' },
		{ 0 },
	};
	struct target_options opts = { 0 };
	struct attach a = { .line = { .cap = MIB(4) } };
	struct proc *proc = NULL;
	uint64_t v = 0;
	pid_t pid;
	int c, r;

	while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		if (c != 'l' && c != 'c' && (c == '?' || !parse_u64(optarg, 100000, &v)))
			return 2;
		switch (c) {
		case 'r': opts.map.retired_bytes = MIB(v); break;
		case 'b': opts.buffer_mb = (uint32_t)v; break;
		case 'g': opts.rerundown_gap_ns = SEC_NS(v); break;
		case 'c': opts.keep_code = a.code = true; break;
		default: opts.il_maps = true; break;
		}
	}
	if (argc - optind != 1 || !parse_pid(argv[optind], &pid))
		return 2;
	signal(SIGPIPE, SIG_IGN);
	log_init("attach", LOG_INFO);
	a.start_ns = clock_now_ns();
	r = proc_open(pid, &proc);
	if (r) {
		log_error("%s", r < 0 ? strerror(-r) : proc_error_text(NULL, r, NULL));
		return 1;
	}
	r = loop_new(&a.loop);
	a.pool.loop = a.loop;
	if (r == 0)
		r = target_new(&a.target, &a.pool, proc, &opts, &callbacks, &a);
	if (r == 0)
		r = target_start(a.target);
	fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
	if (r == 0)
		r = loop_fd_add(a.loop, &a.in, STDIN_FILENO, EPOLLIN, on_input);
	if (r == 0)
		r = loop_run(a.loop);
	target_free(a.target);
	loop_fd_del(&a.in);
	loop_free(a.loop);
	buf_deinit(&a.line);
	return r != 0;
}
