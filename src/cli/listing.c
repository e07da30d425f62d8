/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines of verbs about one process: see listing.h. */
#include "cli/listing.h"

#include <getopt.h>

#include "cli/cli.h"

int listing_take(const char *verb, int argc, char **argv, bool has_retired, void (*help)(void),
		 struct daemon_options *daemon, struct listing_args *args)
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
	const char *pid_option = NULL;
	int c, r;

	*args = (struct listing_args){ 0 };
	/* the first is for one verb alone */
	while ((c = getopt_long(argc, argv, "p:h", options + !has_retired, NULL)) >= 0) {
		if (daemon_option_take(daemon, c, optarg))
			continue;
		switch (c) {
		case OPT_RETIRED: args->retired = true; break;
		case 'j': args->json = true; break;
		case 'p': pid_option = optarg; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint(verb);
		}
	}
	r = cli_only_pid(verb, pid_option, argc - optind, argv + optind, &args->pid);
	return r ? r : -1;
}
