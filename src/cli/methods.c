/* SPDX-License-Identifier: Apache-2.0 */
/* clrsym methods: the code bodies of a process, by address. */
#include "cli/cli.h"
#include "cli/listing.h"

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
	_cleanup_(ask_deinit) struct ask ask = { 0 };
	struct listing listing = { .line.cap = SIZE_MAX };
	struct ask_process *process;
	struct listing_args args;
	int r;

	r = listing_take("methods", argc, argv, true, help, &ask.daemon, &args);
	if (r >= 0)
		return r;
	listing.json = args.json;
	listing.retired = args.retired;
	r = ask_open(&ask, args.pid, false, &process);
	if (r == 0 && !listing.json)
		answer_print_head(listing.retired);
	if (r == 0)
		r = ask_methods(process, listing.retired, on_method, &listing);
	buf_deinit(&listing.line);
	return cli_end(r);
}
