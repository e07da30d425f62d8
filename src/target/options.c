/* SPDX-License-Identifier: Apache-2.0 */
/* Options that clrsym and clrsymd share. */
#include "target/options.h"

#include <string.h>

#include "base/caps.h"
#include "base/number.h"

static bool parse_where(const char *s, enum perfmap_where *wherep)
{
	static const char *const words[] = {
		[PERFMAP_BOTH] = "both",
		[PERFMAP_TARGET] = "target",
		[PERFMAP_HOST] = "host",
		[PERFMAP_OFF] = "off",
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(words); i++) {
		if (strcmp(s, words[i]) == 0) {
			*wherep = (enum perfmap_where)i;
			return true;
		}
	}
	return false;
}

const char *attach_option_take(struct attach_options *opts, int option, const char *arg)
{
	uint64_t v;

	switch (option) {
	case ATTACH_OPT_MAP:
		return parse_where(arg, &opts->map.where) ? NULL
							  : "--map takes target, host, both or off";
	case ATTACH_OPT_MAP_MAX_BYTES:
		return parse_size(arg, &opts->map.max_bytes)
			       ? NULL
			       : "--map-max-bytes takes a size, e.g. 64M";
	case ATTACH_OPT_NAMES:
		return names_parse_style(arg, &opts->map.style) ? NULL : "--names takes short or full";
	case ATTACH_OPT_TIERS: opts->map.tiers = true; return NULL;
	case ATTACH_OPT_BUFFER_MB:
		if (!parse_u64(arg, CAP_BUFFER_MB, &v) || !v)
			return "--buffer-mb takes 1 to 1024";
		opts->target.buffer_mb = (uint32_t)v;
		return NULL;
	default: opts->target.socket.allow_loose = true; return NULL;
	}
}
