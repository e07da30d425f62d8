/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsymd: keeps the code of .NET processes known, and their perf maps true.
 *
 *   SIGTERM, SIGINT  stop every session in good order, within 5 s in all; maps stay behind
 *   SIGUSR1          rewrite all maps at once
 *
 * Exits 0 when its last target has ended, 1 when no target could be attached, 2 on usage.
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
#include "daemon/registry.h"

#define EXIT_USAGE 2

struct daemon {
	struct loop *loop;
	struct registry *registry;
	struct loop_fd signals;
	int signal_fd;
};

static void daemon_deinit(struct daemon *d)
{
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

static void help(void)
{
	printf("Usage: clrsymd [OPTION]... -p PID...\n"
	       "Attaches to .NET processes and keeps /tmp/perf-PID.map true until they end.\n\n"
	       "  -p, --pid PID[,PID]...      a process to attach to; "
	       "repeatable\n" ATTACH_OPTIONS_HELP
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
	enum { OPT_LINES = ATTACH_OPT_END, OPT_GAP };
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		ATTACH_OPTIONS,
		{ "lines", no_argument, NULL, OPT_LINES },
		{ "min-rundown-gap", required_argument, NULL, OPT_GAP },
		{ "verbose", no_argument, NULL, 'v' },
		{ "version", no_argument, NULL, 'V' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(daemon_deinit) struct daemon d = { .signal_fd = -1 };
	struct attach_options opts = { 0 };
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
	if (!n_pids)
		return usage_error("-p PID is needed");
	log_init("clrsymd", level);
	raise_fd_limit();
	proc_maps_sweep();
	r = loop_new(&d.loop);
	if (r == 0)
		r = registry_new(&d.registry, d.loop, &opts);
	if (r == 0)
		r = daemon_watch_signals(&d);
	for (i = 0; i < n_pids && r == 0; i++)
		r = registry_attach(d.registry, pids[i]);
	if (r == 0)
		r = registry_run(d.registry);
	if (r < 0)
		log_error("%s", strerror(-r));
	return r ? EXIT_FAILURE : EXIT_SUCCESS;
}
