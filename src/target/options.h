/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The command line options that every program which attaches has, and their one meaning. */

#include <getopt.h>

#include "target/perfmap.h"
#include "target/target.h"

struct attach_options {
	struct target_options target;
	struct perfmap_options map;
};

enum attach_option {
	ATTACH_OPT_MAP = 256,
	ATTACH_OPT_MAP_MAX_BYTES,
	ATTACH_OPT_NAMES,
	ATTACH_OPT_TIERS,
	ATTACH_OPT_BUFFER_MB,
	ATTACH_OPT_ALLOW_LOOSE,
	ATTACH_OPT_END, /* a program's own options start here */
};

/* For a table of struct option. */
#define ATTACH_OPTIONS \
	{ "map", required_argument, NULL, ATTACH_OPT_MAP }, \
		{ "map-max-bytes", required_argument, NULL, ATTACH_OPT_MAP_MAX_BYTES }, \
		{ "names", required_argument, NULL, ATTACH_OPT_NAMES }, \
		{ "tiers", no_argument, NULL, ATTACH_OPT_TIERS }, \
		{ "buffer-mb", required_argument, NULL, ATTACH_OPT_BUFFER_MB }, \
	{ \
		"allow-loose-socket", no_argument, NULL, ATTACH_OPT_ALLOW_LOOSE \
	}

#define ATTACH_OPTIONS_HELP \
	"      --map target|host|both|off  where maps are kept: the process's own /tmp, ours " \
	"(both)\n" \
	"      --map-max-bytes N       size limit of a map, e.g. 64M (64M)\n" \
	"      --names short|full      Ns.Type::Method, or with its arguments (short)\n" \
	"      --tiers                 append the tier, e.g. [OptimizedTier1]\n" \
	"      --buffer-mb N           buffer asked of the runtime (64)\n" \
	"      --allow-loose-socket    accept a socket whose owner or mode is not the runtime's\n"

/* Takes one of the options. Returns NULL, or what it takes instead ("--names takes ..."). */
const char *attach_option_take(struct attach_options *opts, int option, const char *arg);
