/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsymd: keeps the code of .NET processes known, and their perf maps true.
 *
 *   SIGTERM, SIGINT  stop every session in good order, within 5 s in all; maps stay behind
 *   SIGUSR1          rewrite all maps at once
 *
 * Serves the query socket until it is told to stop. With --no-socket it ends with its last target.
 * Exits 0, 1 when no target could be attached or the socket not be had, 2 on usage.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include "base/caps.h"
#include "base/log.h"
#include "base/number.h"
#include "daemon/server.h"
#include "query/symbols.h"

#define EXIT_USAGE 2

struct daemon {
	struct loop *loop;
	struct registry *registry;
	struct server *server;
	struct loop_fd signals;
	int signal_fd;
};

static void daemon_deinit(struct daemon *d)
{
	server_free(d->server);
	registry_free(d->registry);
	loop_fd_del(&d->signals);
	fd_close(d->signal_fd);
	loop_free(d->loop);
}

static void on_signal(struct loop_fd *source, uint32_t events UNUSED)
{
	struct daemon *d = container_of(source, struct daemon, signals);
	struct signalfd_siginfo info;

	if (read(d->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGUSR1)
		registry_write_maps(d->registry);
	else
		registry_stop(d->registry, DEFAULT_STOP_DEADLINE_NS);
}

static int daemon_watch_signals(struct daemon *d)
{
	sigset_t mask;

	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGUSR1);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	d->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	if (d->signal_fd < 0)
		return -errno;
	return loop_fd_add(d->loop, &d->signals, d->signal_fd, EPOLLIN, on_signal);
}

/* About five fds a target: the soft limit is for programs that use select(). */
static void raise_fd_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* What cannot be attached is said, and no reason to end. Returns 0 or -errno. */
static int attach(struct daemon *d, pid_t pid)
{
	struct entry *e = NULL;
	char why[512];
	int r;

	r = registry_attach(d->registry, pid, &e, why, sizeof(why));
	if (r > 0)
		log_error("pid %d: %s", (int)pid, why);
	if (r == 0)
		e->told = true;
	return MIN(r, 0);
}

static void help(void)
{
	printf("Usage: clrsymd [OPTION]... [-p PID]...\n"
	       "Attaches to .NET processes, keeps /tmp/perf-PID.map true, and answers on the "
	       "query "
	       "socket.\n\n"
	       "  -p, --pid PID[,PID]...      a process to attach to; repeatable (clients may ask "
	       "for\n"
	       "                              more)\n"
	       "      --socket PATH           the query socket (" QUERY_DEFAULT_SOCKET ")\n"
	       "      --no-socket             none: ends with its last process\n"
	       "      --keep-code             keep code bytes, for annotating what has "
	       "exited\n" ATTACH_OPTIONS_HELP
	       "      --lines                 keep IL maps (line numbers): longer rundowns\n"
	       "      --min-rundown-gap S     seconds between rundowns after lost events (60)\n"
	       "  -v, --verbose               say more\n"
	       "      --version               print the version\n");
}

static int usage_hint(void)
{
	fprintf(stderr, "Try 'clrsymd --help'.\n");
	return EXIT_USAGE;
}

static int usage_error(const char *text)
{
	fprintf(stderr, "clrsymd: %s\n", text);
	return usage_hint();
}

/* "12,34": appends to pids. */
static bool parse_pids(char *s, pid_t **pidsp, size_t *np)
{
	char *word, *rest = s;

	while ((word = strsep(&rest, ","))) {
		pid_t *pids = realloc(*pidsp, (*np + 1) * sizeof(*pids));

		if (!pids)
			return false;
		*pidsp = pids;
		if (!parse_pid(word, &pids[*np]))
			return false;
		(*np)++;
	}
	return true;
}

int main(int argc, char **argv)
{
	enum { OPT_LINES = ATTACH_OPT_END, OPT_GAP, OPT_SOCKET, OPT_NO_SOCKET, OPT_KEEP_CODE };
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		ATTACH_OPTIONS,
		{ "lines", no_argument, NULL, OPT_LINES },
		{ "min-rundown-gap", required_argument, NULL, OPT_GAP },
		{ "socket", required_argument, NULL, OPT_SOCKET },
		{ "no-socket", no_argument, NULL, OPT_NO_SOCKET },
		{ "keep-code", no_argument, NULL, OPT_KEEP_CODE },
		{ "verbose", no_argument, NULL, 'v' },
		{ "version", no_argument, NULL, 'V' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(daemon_deinit) struct daemon d = { .signal_fd = -1 };
	struct attach_options opts = { 0 };
	struct server_options server = { 0 };
	bool serve = true;
	_cleanup_free_ pid_t *pids = NULL;
	enum log_level level = LOG_INFO;
	const char *wrong;
	size_t i, n_pids = 0;
	uint64_t n;
	int c, r;

	while ((c = getopt_long(argc, argv, "p:vVh", options, NULL)) >= 0) {
		switch (c) {
		case 'p':
			if (!parse_pids(optarg, &pids, &n_pids))
				return usage_error("-p takes process ids");
			break;
		case OPT_LINES: opts.target.il_maps = true; break;
		case OPT_GAP:
			if (!parse_u64(optarg, 86400, &n) || !n)
				return usage_error("--min-rundown-gap takes 1 to 86400 seconds");
			opts.target.rerundown_gap_ns = SEC_NS(n);
			break;
		case OPT_SOCKET: server.path = optarg; break;
		case OPT_NO_SOCKET: serve = false; break;
		case OPT_KEEP_CODE: server.keep_code = opts.target.keep_code = true; break;
		case 'v': level = LOG_DEBUG; break;
		case 'V': printf("clrsymd %s\n", CLRSYM_VERSION); return EXIT_SUCCESS;
		case 'h': help(); return EXIT_SUCCESS;
		case '?': return usage_hint();
		default:
			wrong = attach_option_take(&opts, c, optarg);
			if (wrong)
				return usage_error(wrong);
			break;
		}
	}
	for (; optind < argc; optind++)
		if (!parse_pids(argv[optind], &pids, &n_pids))
			return usage_error("PIDs are numbers");
	if (!n_pids && !serve)
		return usage_error("--no-socket needs -p PID");
	if (server.path && !serve)
		return usage_error("--socket or --no-socket");
	log_init("clrsymd", level);
	raise_fd_limit();
	proc_maps_sweep();
	r = loop_new(&d.loop);
	if (r == 0)
		r = registry_new(&d.registry, d.loop, &opts, serve);
	if (r == 0)
		r = daemon_watch_signals(&d);
	if (r == 0 && serve && server_new(&d.server, d.loop, d.registry, &server) < 0)
		return EXIT_FAILURE;
	for (i = 0; i < n_pids && r == 0; i++)
		r = attach(&d, pids[i]);
	if (r == 0)
		r = registry_run(d.registry);
	if (r < 0)
		log_error("%s", strerror(-r));
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
