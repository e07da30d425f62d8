/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The options of every verb that writes images: how symbols are spelled. */

#include <getopt.h>
#include <stdbool.h>

#include "names/names.h"

struct naming {
	enum names_style style;
	bool no_tiers; /* no [Tier] behind the name */
};

enum naming_option {
	NAMING_OPT_NAMES = 512,
	NAMING_OPT_NO_TIERS,
};

/* For a table of struct option. */
#define NAMING_OPTIONS \
	{ "names", required_argument, NULL, NAMING_OPT_NAMES }, \
	{ \
		"no-tiers", no_argument, NULL, NAMING_OPT_NO_TIERS \
	}

#define NAMING_OPTIONS_HELP \
	"      --names short|full  Ns.Type::Method, or with its arguments (short)\n" \
	"      --no-tiers          no [Tier] behind names\n"

/* Takes one of the options. Returns NULL, or what it takes instead. */
static inline const char *naming_take(struct naming *naming, int option, const char *arg)
{
	if (option == NAMING_OPT_NO_TIERS)
		naming->no_tiers = true;
	else if (!names_parse_style(arg, &naming->style))
		return "--names takes short or full";
	return NULL;
}
