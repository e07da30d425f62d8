/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Decoded events as JSON objects: the keys, spellings and order that traces are compared with. */

#include <jansson.h>

#include "clr/clr.h"
#include "nettrace/nettrace.h"

/*
 * How every object is printed: on one line, and in ASCII, so that no name can smuggle a line break
 * (U+2028 is one to many readers) or a terminal's control sequence into it.
 */
#define EVENT_JSON_FLAGS (JSON_COMPACT | JSON_ENSURE_ASCII)

/* A new object for one event, or NULL without memory. */
json_t *event_json(const struct nettrace_event *nev, const struct clr_layout *layout,
		   const struct clr_event *ev);
/*
 * Does an event have a line? The JSON lines are the set that TraceEvent's view of a stream has: it
 * counts tail calls that failed, the GC's settings and the process information without a line.
 */
bool event_has_line(const struct clr_event *ev, bool json);
/* "0x7f..": addresses and ids in every JSON output. */
json_t *event_hex(uint64_t v);
