/* SPDX-License-Identifier: Apache-2.0 */
/* clrsym methods: the code bodies of a process, by address. */
#include "cli/cli.h"

#include <getopt.h>

#include "cli/answer.h"

struct listing {
	bool json, retired;
	struct buf line;
};

static int on_method(void *data, const struct query_method *m)
{
	struct listing *listing = data;

	if (listing->json) {
		buf_putc(&listing->line, '{');
		query_put_method(&listing->line, m);
		buf_putc(&listing->line, '}');
	} else {
		answer_put_row(&listing->line, m, listing->retired);
	}
	return answer_print_line(&listing->line);
}

static void help(void)
{
	printf("Usage: clrsym methods [OPTION]... PID\n"
	       "Lists the code bodies of a .NET process by address.\n\n" CLI_PID_HELP
	       "      --retired           also those that were unloaded and are still remembered, "
	       "with\n"
	       "                          times (s of CLOCK_MONOTONIC; - before anything was "
	       "known)\n"
	       "      --json              one JSON object a line\n" DAEMON_OPTIONS_HELP
	       "\nColumns: START in hex, SIZE in bytes, TIER of the compiler (the runtime's own "
	       "word), METHOD.\n" CLI_EXIT_HELP);
}

int cli_methods(int argc, char **argv)
{
	enum { OPT_RETIRED = 256 };
	static const struct option options[] = {
		{ "retired", no_argument, NULL, OPT_RETIRED },
		{ "json", no_argument, NULL, 'j' },
		CLI_PID_OPTION,
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(ask_deinit) struct ask ask = { 0 };
	struct listing listing = { .line.cap = SIZE_MAX };
	const char *pid_option = NULL;
	struct ask_process *process;
	pid_t pid;
	int c, r;

	while ((c = getopt_long(argc, argv, "p:h", options, NULL)) >= 0) {
		if (daemon_option_take(&ask.daemon, c, optarg))
			continue;
		switch (c) {
		case OPT_RETIRED: listing.retired = true; break;
		case 'j': listing.json = true; break;
		case 'p': pid_option = optarg; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint("methods");
		}
	}
	r = cli_only_pid("methods", pid_option, argc - optind, argv + optind, &pid);
	if (r)
		return r;
	r = ask_open(&ask, pid, false, &process);
	if (r == 0 && !listing.json)
		answer_print_head(listing.retired);
	if (r == 0)
		r = ask_methods(process, listing.retired, on_method, &listing);
	buf_deinit(&listing.line);
	return cli_end(r);
}
