/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values that all methods of the interface share, out of JSON and into it.
 *
 * What a client sends is either understood in full or refused with the name of the member that
 * is at fault: a number that is out of range, a real where an integer belongs, a member that
 * nobody reads. Nothing is rounded, cut or guessed, as a wrong address has a wrong name.
 */
#include "query/symbols.h"

#include <limits.h>
#include <string.h>

#include "query/text.h"

/* -- Out of JSON ---------------------------------------------------------------------- */

/* NULL for null, too. */
static json_t *member(json_t *parameters, const char *name)
{
	json_t *value = json_object_get(parameters, name);

	return json_is_null(value) ? NULL : value;
}

static bool parse_count(json_t *value, uint64_t max, uint64_t *vp)
{
	json_int_t v;

	if (!json_is_integer(value))
		return false;
	v = json_integer_value(value);
	if (v < 0 || (uint64_t)v > max)
		return false;
	*vp = (uint64_t)v;
	return true;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : INT_MAX;
}

/* All of s, as digits of the base; no more than 64 bits. */
static bool parse_digits(const char *s, unsigned int base, uint64_t *vp)
{
	uint64_t v = 0;
	const char *c;

	for (c = s; *c; c++) {
		unsigned int d = (unsigned int)digit(*c);

		if (d >= base || __builtin_mul_overflow(v, base, &v) ||
		    __builtin_add_overflow(v, d, &v))
			return false;
	}
	*vp = v;
	return c > s;
}

bool query_parse_address(json_t *value, uint64_t *addrp)
{
	const char *s = json_string_value(value);

	if (!s)
		return parse_count(value, INT64_MAX, addrp);
	/* without it decimal digits would be taken for an address */
	if (s[0] != '0' || s[1] != 'x')
		return false;
	s += 2;
	return strlen(s) <= 16 && parse_digits(s, 16, addrp);
}

bool query_parse_time(json_t *value, uint64_t *timep)
{
	const char *s = json_string_value(value);

	return s ? parse_digits(s, 10, timep) : parse_count(value, INT64_MAX, timep);
}

int query_parse_members(json_t *parameters, const char *const *names, const char **badp)
{
	const char *key;
	json_t *value;

	json_object_foreach(parameters, key, value)
	{
		const char *const *name = names;

		while (*name && strcmp(*name, key))
			name++;
		if (!*name)
			return query_bad(key, badp);
	}
	return 0;
}

int query_parse_process(json_t *parameters, pid_t *pidp, uint64_t *startp, const char **badp)
{
	uint64_t pid = 0;

	*startp = 0;
	if (query_parse_count(parameters, "pid", INT_MAX, &pid, badp) || !pid)
		return query_bad("pid", badp);
	*pidp = (pid_t)pid;
	return query_parse_count(parameters, "start", INT64_MAX, startp, badp);
}

int query_parse_count(json_t *parameters, const char *name, uint64_t max, uint64_t *vp,
		      const char **badp)
{
	json_t *value = member(parameters, name);

	return !value || parse_count(value, max, vp) ? 0 : query_bad(name, badp);
}

int query_parse_flag(json_t *parameters, const char *name, bool *flagp, const char **badp)
{
	json_t *value = member(parameters, name);

	if (!value)
		return 0;
	if (!json_is_boolean(value))
		return query_bad(name, badp);
	*flagp = json_is_true(value);
	return 0;
}

/* -- Into JSON ------------------------------------------------------------------------ */

static void put_text(struct buf *out, const char *name, const char *s, size_t len)
{
	buf_puts(out, name);
	text_put_string(out, s, len);
}

static void put_number(struct buf *out, const char *name, uint64_t v)
{
	buf_puts(out, name);
	text_put_u64(out, v);
}

void query_put_method(struct buf *out, const struct query_method *m)
{
	buf_puts(out, "\"method_id\":");
	text_put_hex(out, m->method_id);
	put_text(out, ",\"ns\":", m->ns, m->ns_len);
	put_text(out, ",\"name\":", m->name, m->name_len);
	put_text(out, ",\"sig\":", m->sig, m->sig_len);
	if (m->module)
		put_text(out, ",\"module\":", m->module, m->module_len);
	else
		buf_puts(out, ",\"module\":null");
	put_text(out, ",\"tier\":", m->tier, strlen(m->tier));
	buf_puts(out, ",\"start\":");
	text_put_hex(out, m->start);
	put_number(out, ",\"size\":", m->size);
	put_number(out, ",\"version\":", m->version);
	buf_puts(out, ",\"load\":");
	text_put_time(out, m->load);
	buf_puts(out, ",\"unload\":");
	if (m->unload != UINT64_MAX)
		text_put_time(out, m->unload);
	else
		buf_puts(out, "null");
	put_text(out, ",\"function\":", m->function, m->function_len);
}
