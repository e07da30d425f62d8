/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of a program's way through libclrsym fails in turn: the call says -ENOMEM, what
 * memory knows is named none the less, nothing leaks. The fake daemon is another process, so
 * that its allocations do not count.
 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "base/util.h"
#include "tests/lib/fake.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

static char path[64];

static void check(bool good, const char *what, unsigned long n)
{
	if (good)
		return;
	fprintf(stderr, "torture_libclrsym: allocation %lu: %s\n", n, what);
	exit(EXIT_FAILURE);
}

static void check_result(int r, const char *what, unsigned long n)
{
	check(r == 0 || r == -ENOMEM, what, n);
}

static void resolve(struct clrsym_process *p, unsigned long n)
{
	struct clrsym_query queries[2] = { { .addr = FAKE_CODE, .time_ns = FAKE_T0 },
					   { .addr = FAKE_FAR, .time_ns = FAKE_T0 } };
	struct clrsym_symbol symbols[2];
	char names[2][64];
	int r, i;

	for (i = 0; i < 2; i++)
		clrsym_symbol_init(&symbols[i], names[i], sizeof(names[i]), NULL, 0);
	r = clrsym_resolve(p, queries, symbols, 2, NULL);
	check_result(r, "resolve", n);
	check(!strcmp(names[0], "Ns.Type::M0(int32)"), "a name from memory", n);
	check(symbols[1].reason == (r ? CLRSYM_UNANSWERED : CLRSYM_NAMED), "the other one", n);
	check(r || !strcmp(names[1], "Far.Away::Run(int32)"), "a name from the daemon", n);
}

static void monitor(struct clrsym_process *p, unsigned long n)
{
	struct clrsym_monitor *m = NULL;
	enum clrsym_change change;
	struct clrsym_symbol sym;
	int r;

	clrsym_symbol_init(&sym, NULL, 0, NULL, 0);
	r = clrsym_monitor_open(p, &m);
	check_result(r, "monitor_open", n);
	if (r == 0) {
		r = clrsym_monitor_next(m, 1000, &change, &sym);
		/* the fake one refuses: what comes is an error */
		check(r == -ENOTCONN || r == -ENOMEM, "monitor_next", n);
	}
	clrsym_monitor_close(m);
}

static void use(unsigned long n)
{
	struct clrsym_open_opts opts = { .sz = sizeof(opts), .socket_path = path };
	struct clrsym_process *p = NULL;
	struct clrsym *c = NULL;
	int r;

	r = clrsym_open(&opts, &c);
	check_result(r, "open", n);
	if (r == 0)
		r = clrsym_process_open(c, FAKE_PID, 0, NULL, &p);
	check_result(r, "process_open", n);
	if (r == 0) {
		resolve(p, n);
		monitor(p, n);
	}
	clrsym_process_close(p);
	clrsym_close(c);
}

/* Serves until the other end of the pipe is closed. */
static void serve(int path_fd, int end_fd)
{
	struct fake fake;
	char byte;

	fake_start(&fake);
	fake.error[FAKE_MONITOR] = "org.clrsym.Symbols.NotAttached";
	if (write(path_fd, fake.path, sizeof(fake.path)) == sizeof(fake.path))
		while (read(end_fd, &byte, 1) > 0)
			;
	fake_stop(&fake);
	exit(EXIT_SUCCESS);
}

int main(void)
{
	int path_fds[2], end_fds[2], status = -1;
	unsigned long n = 0;
	pid_t pid;

	check(pipe(path_fds) == 0 && pipe(end_fds) == 0, "pipe", 0);
	pid = fork();
	if (pid == 0) {
		close(end_fds[1]);
		serve(path_fds[1], end_fds[0]);
	}
	check(read(path_fds[0], path, sizeof(path)) == sizeof(path), "no daemon", 0);
	do {
		torture_arm(++n);
		use(n);
	} while (torture_count() >= n);
	torture_arm(0);
	close(end_fds[1]);
	waitpid(pid, &status, 0);
	check(status == 0, "the daemon's end", 0);
	printf("torture_libclrsym: %lu allocations failed in turn\n", n - 1);
	return EXIT_SUCCESS;
}
