/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * One spelling of every method name.
 *
 *   short  Ns.Type::Method
 *   full   Ns.Type::Method(args)        one blank, no ';', no control characters
 *
 * Generics and nesting stay as the runtime's events spell them. The signature of an
 * event is "[instance ][generic ]ret  (args)": display text only, never identity.
 * Tier suffixes in brackets, as the runtime's own perf map has them.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum names_style {
	NAMES_SHORT,
	NAMES_FULL,
};

/* "short" or "full". */
bool names_parse_style(const char *word, enum names_style *stylep);

/* The parts of one method's name: UTF-8, not NUL-terminated. */
struct names_method {
	const char *ns, *name, *sig;
	uint32_t ns_len, name_len, sig_len;
	uint32_t flags; /* MethodFlags of the events */
};

/*
 * The tier of a body from its MethodFlags: "ReadyToRun" when it was not jitted, else
 * "QuickJitted", "OptimizedTier1", ...; "Unknown" for a jitted body that does not say.
 */
const char *names_tier(uint32_t flags);
/* Made by the JIT, not read from an image. */
bool names_is_jitted(uint32_t flags);

/*
 * Appends the method's name, escaped for maps (see escape_line() of base): valid UTF-8,
 * no control characters, never empty. With tiers, "[Tier]" follows without a blank. Returns 0,
 * -ENOMEM or -ENOSPC (the buffer's).
 */
int names_append(struct buf *out, const struct names_method *m, enum names_style style, bool tiers);
