/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers: symbols filled in from what the daemon sent, and all texts.
 *
 * What comes from the daemon is checked as anything else: a method whose numbers cannot be makes
 * its whole reply bad. Texts are cut at a character, never inside one.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/number.h"
#include "base/utf.h"
#include "lib/lib.h"
#include "names/names.h"
#include "query/symbols.h"

bool symbol_is_valid(const struct clrsym_symbol *sym)
{
	return sym && sym->sz >= SYMBOL_LEAST && (sym->name || !sym->name_size) &&
	       (sym->module || !sym->module_size);
}

void symbol_clear(struct clrsym_symbol *sym)
{
	size_t from = offsetof(struct clrsym_symbol, start);

	memset((char *)sym + from, 0, sizeof(*sym) - from);
	sym->il_offset = -1;
	sym->reason = CLRSYM_UNANSWERED;
	if (sym->name_size)
		sym->name[0] = '\0';
	if (sym->module_size)
		sym->module[0] = '\0';
}

/* -- Reasons ---------------------------------------------------------------------------- */

#define DATA_LOST "data lost"

static const char *const reason_texts[] = {
	[CLRSYM_NAMED] = "",
	[CLRSYM_UNANSWERED] = "unanswered",
	[CLRSYM_UNMAPPED] = QUERY_REASON_UNMAPPED,
	[CLRSYM_STUB] = QUERY_REASON_STUB,
	[CLRSYM_NATIVE] = QUERY_REASON_NATIVE,
	[CLRSYM_NOT_ANNOUNCED] = "not announced",
	[CLRSYM_NOT_LOADED_YET] = "not loaded yet",
	[CLRSYM_RETIRED] = "retired",
	[CLRSYM_EXPIRED] = "expired",
	[CLRSYM_DATA_LOST] = DATA_LOST,
	[CLRSYM_OVER_CAP] = "over a cap",
	[CLRSYM_NOT_ATTACHED] = QUERY_REASON_NOT_ATTACHED,
	[CLRSYM_DENIED] = QUERY_REASON_DENIED,
	[CLRSYM_OTHER] = "unknown reason",
};

const char *clrsym_reason_text(uint32_t reason)
{
	return reason_texts[reason < ARRAY_SIZE(reason_texts) ? reason : CLRSYM_OTHER];
}

size_t clrsym_reason_format(const struct clrsym_symbol *sym, char *buf, size_t size)
{
	const char *text = clrsym_reason_text(sym->reason);
	int len;

	if (sym->reason_ns)
		len = snprintf(buf, size, "%s at %" PRIu64, text, sym->reason_ns);
	else
		len = snprintf(buf, size, "%s", text);
	return (size_t)len;
}

/* "data lost at NS", or without the time. */
static bool is_data_lost(const char *reason, uint64_t *nsp)
{
	size_t len = strlen(DATA_LOST);

	*nsp = 0;
	if (strncmp(reason, DATA_LOST, len) != 0)
		return false;
	reason += len;
	if (strncmp(reason, " at ", 4) == 0)
		return parse_u64(reason + 4, UINT64_MAX, nsp);
	return !*reason;
}

void symbol_miss(struct clrsym_symbol *sym, const char *reason)
{
	uint32_t i;

	symbol_clear(sym);
	sym->reason = CLRSYM_OTHER;
	if (is_data_lost(reason, &sym->reason_ns)) {
		sym->reason = CLRSYM_DATA_LOST;
		return;
	}
	for (i = CLRSYM_UNMAPPED; i < CLRSYM_OTHER; i++)
		if (strcmp(reason, reason_texts[i]) == 0)
			sym->reason = i;
}

/* -- Methods as they come over the socket ----------------------------------------------- */

static bool get_hex(json_t *object, const char *key, uint64_t *vp)
{
	return query_parse_address(json_object_get(object, key), vp);
}

static bool get_u32(json_t *object, const char *key, uint32_t *vp)
{
	json_t *value = json_object_get(object, key);
	json_int_t v = json_integer_value(value);

	*vp = (uint32_t)v;
	return json_is_integer(value) && v >= 0 && v <= UINT32_MAX;
}

/* null where the daemon has nothing to say */
static bool get_text(json_t *object, const char *key, const char **textp, size_t *lenp)
{
	json_t *value = json_object_get(object, key);

	*textp = json_is_string(value) ? json_string_value(value) : "";
	*lenp = json_string_length(value);
	return json_is_string(value) || json_is_null(value);
}

/* The name without its arguments: as long as its parts are when spelled, where both agree. */
static size_t short_length(const struct lib_method *m, json_t *value)
{
	struct names_method parts = { 0 };
	_cleanup_buf_ struct buf spelled;
	size_t ns_len, name_len;

	buf_init(&spelled, SIZE_MAX);
	if (!get_text(value, "ns", &parts.ns, &ns_len) ||
	    !get_text(value, "name", &parts.name, &name_len) ||
	    MAX(ns_len, name_len) > CAP_NAME_LENGTH)
		return m->function_len;
	parts.ns_len = (uint32_t)ns_len;
	parts.name_len = (uint32_t)name_len;
	if (names_append(&spelled, &parts, NAMES_SHORT, false) < 0 ||
	    spelled.len > m->function_len || memcmp(spelled.data, m->function, spelled.len) != 0)
		return m->function_len;
	return spelled.len;
}

bool lib_method_parse(struct lib_method *m, json_t *value)
{
	json_t *unload = json_object_get(value, "unload");
	size_t tier_len;

	if (!get_hex(value, "start", &m->start) || !get_hex(value, "method_id", &m->method_id) ||
	    !get_u32(value, "size", &m->size) || !get_u32(value, "version", &m->version) ||
	    !query_parse_time(json_object_get(value, "load"), &m->load) ||
	    !get_text(value, "function", &m->function, &m->function_len) ||
	    !get_text(value, "module", &m->module, &m->module_len) ||
	    !get_text(value, "tier", &m->tier, &tier_len))
		return false;
	m->unload = UINT64_MAX;
	if (!json_is_null(unload) && !query_parse_time(unload, &m->unload))
		return false;
	if (!m->size || m->start > UINT64_MAX - m->size)
		return false;
	m->short_len = short_length(m, value);
	return true;
}

/* Returns false when it was cut. */
static bool put_text(char *dst, size_t size, const char *text, size_t len)
{
	size_t n;

	if (!size)
		return true;
	n = utf8_cut(text, len, size - 1);
	memcpy(dst, text, n);
	dst[n] = '\0';
	return n == len;
}

void symbol_hit(struct clrsym_symbol *sym, const struct lib_method *m)
{
	symbol_clear(sym);
	sym->reason = CLRSYM_NAMED;
	sym->start = m->start;
	sym->size = m->size;
	sym->load_ns = m->load;
	sym->unload_ns = m->unload;
	sym->method_id = m->method_id;
	sym->version = m->version;
	sym->short_len = (uint32_t)m->short_len;
	put_text(sym->tier, sizeof(sym->tier), m->tier, strlen(m->tier));
	sym->truncated = !put_text(sym->name, sym->name_size, m->function, m->function_len);
	if (!put_text(sym->module, sym->module_size, m->module, m->module_len))
		sym->truncated = true;
}

/* -- Errors ----------------------------------------------------------------------------- */

static const struct {
	int error;
	const char *text;
} error_texts[] = {
	{ 0, "success" },
	{ EINVAL, "invalid argument" },
	{ E2BIG, "an option is set that this version of libclrsym does not know" },
	{ ENOMEM, "out of memory" },
	{ ENOENT, "not known without asking the daemon" },
	{ EAGAIN, "nothing has come yet" },
	{ ENODATA, "the process has ended" },
	{ ECHILD, "the handle belongs to the parent process" },
	{ ECONNREFUSED, "no clrsym daemon answers at the socket" },
	{ ECONNRESET, "the clrsym daemon has gone" },
	{ ETIMEDOUT, "the clrsym daemon did not answer in time" },
	{ EPROTO, "the clrsym daemon answered something that is not understood" },
	{ EACCES, "permission denied by the clrsym daemon or its socket" },
	{ EPERM, "not permitted" },
	{ ESRCH, "no such process" },
	{ ENOTCONN, "the clrsym daemon is not attached to the process" },
	{ ENOTSUP, "the clrsym daemon cannot attach to the process" },
	{ EXDEV, "the process is in another pid namespace" },
	{ EBUSY, "the clrsym daemon is at one of its limits" },
	{ ENOSYS, "the clrsym daemon is too old for this call" },
	{ EREMOTEIO, "the clrsym daemon failed" },
	{ EMFILE, "too many open files" },
	{ ENFILE, "too many open files in the system" },
	{ ENOBUFS, "the process's code has moved too often; open it again" },
	{ ENAMETOOLONG, "the path of the socket is too long" },
};

const char *clrsym_strerror(int err)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(error_texts); i++)
		if (err == error_texts[i].error || err == -error_texts[i].error)
			return error_texts[i].text;
	return "unexpected error of the system";
}

const char *clrsym_version(void)
{
	return CLRSYM_VERSION;
}
