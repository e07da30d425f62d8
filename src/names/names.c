/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spelling of method names.
 *
 * The parts go out as the events have them, through the escaping for lines; then what was
 * appended is tidied in place, which never makes it longer:
 *
 *  - addresses of method tables, which the runtime puts into signatures and instantiations
 *    as a comment (MT: 0x7f..) or as pMT: 0x7f..<class X>, differ from run to run and would
 *    break every grouping by name: they go, X stays;
 *  - ';' separates frames in folded stacks: it becomes ':';
 *  - blanks come one at a time.
 *
 * Names are whatever a compiler or an obfuscator made; a part that is missing is said to be.
 */
#include "names/names.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/escape.h"

#define FLAG_DYNAMIC 0x1u
#define FLAG_JITTED  0x8u
#define TIER_SHIFT   7
#define TIER_MASK    0x7u

/* CORECLR: MethodFlags bits 7 to 9; the names are those of the runtime's own perf map. */
static const char *const tiers[] = {
	"Unknown",        "MinOptJitted",      "Optimized",        "QuickJitted",
	"OptimizedTier1", "OptimizedTier1OSR", "InstrumentedTier", "InstrumentedTierOptimized",
};

const char *names_tier(uint32_t flags)
{
	/* precompiled code may carry "Optimized" */
	if (!(flags & FLAG_JITTED))
		return "ReadyToRun";
	return tiers[flags >> TIER_SHIFT & TIER_MASK];
}

bool names_is_jitted(uint32_t flags)
{
	return flags & FLAG_JITTED;
}

bool names_parse_style(const char *word, enum names_style *stylep)
{
	if (strcmp(word, "short") == 0)
		*stylep = NAMES_SHORT;
	else if (strcmp(word, "full") == 0)
		*stylep = NAMES_FULL;
	else
		return false;
	return true;
}

static bool starts_with(const char *s, const char *end, const char *word)
{
	size_t n = strlen(word);

	return (size_t)(end - s) >= n && memcmp(s, word, n) == 0;
}

/* Where a remark "pMT: 0x1234" at s ends, or NULL if there is none. */
static const char *address_end(const char *s, const char *end, const char *word)
{
	if (!starts_with(s, end, word))
		return NULL;
	s += strlen(word);
	while (s < end &&
	       ((*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'f') || (*s >= 'A' && *s <= 'F')))
		s++;
	return s;
}

/* The '>' that closes what was opened just before s, or NULL. */
static const char *closing(const char *s, const char *end)
{
	unsigned int depth = 1;

	for (; s < end; s++) {
		if (*s == '<')
			depth++;
		else if (*s == '>' && !--depth)
			return s;
	}
	return NULL;
}

/* Tidies [s, s + len) in place; returns the new length. */
static size_t tidy(char *text, size_t len)
{
	/* closers of remarks that were taken out, so that they go too; deeper nesting stays */
	const char *skip[16], *s = text, *end = text + len, *q, *close;
	bool comments = true, tables = true; /* false once one was left open */
	unsigned int n_skip = 0;
	char *out = text;

	/* without a blank there is no remark, either */
	if (!memchr(text, ' ', len) && !memchr(text, ';', len))
		return len;
	while (s < end) {
		if (n_skip && s == skip[n_skip - 1]) {
			n_skip--;
			s++;
			continue;
		}
		if (*s == '/' && comments && starts_with(s, end, "/* MT: 0x")) {
			q = memmem(s, (size_t)(end - s), "*/", 2);
			if (q) {
				s = q + 2;
				if (out > text && out[-1] == ' ')
					out--;
				continue;
			}
			comments = false;
		}
		if (*s == 'p' && tables && n_skip < ARRAY_SIZE(skip)) {
			q = address_end(s, end, "pMT: 0x");
			if (q && q < end && *q == '<') {
				close = closing(q + 1, end);
				if (close) {
					skip[n_skip++] = close;
					s = q + 1;
					continue;
				}
				tables = false;
			} else if (q) {
				s = q;
				continue;
			}
		}
		if (*s == ' ' && out > text && out[-1] == ' ') {
			s++;
			continue;
		}
		*out++ = *s == ';' ? ':' : *s;
		s++;
	}
	return (size_t)(out - text);
}

static int append_part(struct buf *out, const char *s, uint32_t len)
{
	size_t from = out->len;
	int r = escape_line(out, s, len, SIZE_MAX);

	if (r == 0)
		out->len = from + tidy((char *)out->data + from, out->len - from);
	return r;
}

/* The arguments of a signature "[instance ]ret  (args)", parentheses included. */
static const char *arguments(const struct names_method *m, uint32_t *lenp)
{
	const char *p = m->sig_len ? memmem(m->sig, m->sig_len, "  (", 3) : NULL;

	if (!p)
		return NULL;
	p += 2;
	*lenp = m->sig_len - (uint32_t)(p - m->sig);
	return p;
}

static int append(struct buf *out, const struct names_method *m, enum names_style style,
		  bool tiers_too)
{
	const char *args;
	uint32_t len;
	int r = 0;

	if (m->ns_len) {
		r = append_part(out, m->ns, m->ns_len);
		if (r == 0)
			r = buf_puts(out, "::");
		if (r < 0)
			return r;
	}
	if (m->name_len)
		r = append_part(out, m->name, m->name_len);
	else
		r = buf_puts(out, m->flags & FLAG_DYNAMIC ? "[dynamic method]" : "[no name]");
	if (r < 0)
		return r;
	args = style == NAMES_FULL ? arguments(m, &len) : NULL;
	if (args)
		r = append_part(out, args, len);
	if (r < 0 || !tiers_too)
		return r;
	r = buf_putc(out, '[');
	if (r == 0)
		r = buf_puts(out, names_tier(m->flags));
	return r < 0 ? r : buf_putc(out, ']');
}

int names_append(struct buf *out, const struct names_method *m, enum names_style style,
		 bool tiers_too)
{
	size_t from = out->len;
	int r = append(out, m, style, tiers_too);

	if (r < 0)
		out->len = from;
	return r;
}
