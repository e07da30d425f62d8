/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Diagnostic IPC messages, to and from bytes.
 *
 * The port can do far more than trace: load code into the process, dump it, change its
 * environment. And its parsers are brittle: a payload that is empty, cut, or has a field out of
 * range ends in a NULL dereference that takes the whole process down. Hence two rules. What may
 * leave this program is one switch, in diagipc_request(). And a request is checked as a whole
 * before its first byte is written, so that every message is either well formed or absent.
 *
 * Replies are hostile input: nothing in them is believed before the bounded reader has it.
 *
 * Format: documentation/design-docs/ipc-protocol.md of dotnet/diagnostics, corrected by what
 * 3.1, 8, 9, 10 and 11 really send: the cookie of ProcessInfo comes second, not last; an error
 * reply is 24 bytes, not 28.
 */
#include "diagipc/diagipc.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/utf.h"

#define DIAGIPC_REPLY_SET   0xffu
#define DIAGIPC_REPLY_OK    0x00u
#define DIAGIPC_REPLY_ERROR 0xffu

/* nettrace V4. Any other value is refused at best, fatal to the target on 8 and 9. */
#define DIAGIPC_FORMAT_NETTRACE 1u
/* CollectTracing5 and later: bytes on this socket, not user_events in the kernel. */
#define DIAGIPC_SESSION_STREAMING 0u
/* CollectTracing6: a full buffer drops events. The other mode would block the target's threads. */
#define DIAGIPC_BUFFER_DROP   0u

#define DIAGIPC_MAX_BUFFER_MB 65536u
#define DIAGIPC_MAX_PROVIDERS 1000u
#define DIAGIPC_MAX_LEVEL     5u

/* ASCII and one zero byte, which belongs to it. */
static const char diagipc_magic[14] = "DOTNET_IPC_V1";

/* -- Requests ------------------------------------------------------------------------- */

static bool diagipc_name_is_valid(const char *name)
{
	const char *c;

	if (!name || !*name)
		return false;
	for (c = name; *c; c++)
		if (*c <= ' ' || *c > '~')
			return false;
	return true;
}

static bool diagipc_session_is_valid(const struct diagipc_session *s)
{
	size_t i, j;

	if (!s->buffer_mb || s->buffer_mb > DIAGIPC_MAX_BUFFER_MB)
		return false;
	if (!s->providers || !s->n_providers || s->n_providers > DIAGIPC_MAX_PROVIDERS)
		return false;
	for (i = 0; i < s->n_providers; i++) {
		const struct diagipc_provider *p = &s->providers[i];

		if (!diagipc_name_is_valid(p->name) || p->level > DIAGIPC_MAX_LEVEL)
			return false;
		if (p->n_event_ids && !p->event_ids)
			return false;
		/* How runtimes merge two entries of one provider is not known. */
		for (j = 0; j < i; j++)
			if (!strcmp(p->name, s->providers[j].name))
				return false;
	}
	return true;
}

/* u32 count of UTF-16 units, the final zero included; then the units. */
static void diagipc_put_string(struct buf *out, const char *s)
{
	size_t i, n = strlen(s) + 1;

	buf_put_u32(out, (uint32_t)n);
	for (i = 0; i < n && !out->error; i++)
		buf_put_u16(out, (uint8_t)s[i]);
}

static void diagipc_put_provider(struct buf *out, enum diagipc_command command,
				 const struct diagipc_provider *p)
{
	size_t i;

	buf_put_u64(out, p->keywords);
	buf_put_u32(out, p->level);
	diagipc_put_string(out, p->name);
	buf_put_u32(out, 0); /* no arguments */
	if (command < DIAGIPC_COLLECT_TRACING5)
		return;
	/* An enabled filter lets only the listed events through, a disabled one all but these. */
	buf_put_u8(out, p->n_event_ids != 0);
	buf_put_u32(out, (uint32_t)p->n_event_ids);
	for (i = 0; i < p->n_event_ids && !out->error; i++)
		buf_put_u32(out, p->event_ids[i]);
}

/* Each newer command adds a field to the one before it, as their values ascend. */
static void diagipc_put_session(struct buf *out, enum diagipc_command command,
				const struct diagipc_session *s)
{
	size_t i;

	if (command >= DIAGIPC_COLLECT_TRACING5)
		buf_put_u32(out, DIAGIPC_SESSION_STREAMING);
	buf_put_u32(out, s->buffer_mb);
	buf_put_u32(out, DIAGIPC_FORMAT_NETTRACE);
	if (command >= DIAGIPC_COLLECT_TRACING4)
		buf_put_u64(out, s->rundown_keywords);
	else
		buf_put_u8(out, s->rundown_keywords != 0);
	if (command >= DIAGIPC_COLLECT_TRACING3)
		buf_put_u8(out, 0); /* stacks cost the target a walk an event */
	buf_put_u32(out, (uint32_t)s->n_providers);
	for (i = 0; i < s->n_providers; i++)
		diagipc_put_provider(out, command, &s->providers[i]);
	if (command >= DIAGIPC_COLLECT_TRACING6)
		buf_put_u32(out, DIAGIPC_BUFFER_DROP);
}

static void diagipc_put_header(struct buf *out, enum diagipc_command command)
{
	buf_append(out, diagipc_magic, sizeof(diagipc_magic));
	buf_put_u16(out, 0); /* size, see diagipc_finish() */
	buf_put_u8(out, (uint8_t)(command >> 8));
	buf_put_u8(out, (uint8_t)command);
	buf_put_u16(out, 0); /* reserved */
}

/* Fills in the size of the message that begins at start, or takes all of it back. */
static int diagipc_finish(struct buf *out, size_t start)
{
	size_t size = out->len - start;
	int r = out->error;

	if (!r && size > CAP_IPC_MESSAGE)
		r = -ENOSPC;
	if (r < 0) {
		out->len = start;
		return r;
	}
	out->data[start + sizeof(diagipc_magic)] = (uint8_t)size;
	out->data[start + sizeof(diagipc_magic) + 1] = (uint8_t)(size >> 8);
	return 0;
}

/* This switch is the list of what can leave the program. */
int diagipc_request(struct buf *out, enum diagipc_command command, const union diagipc_args *args)
{
	size_t start = out->len;

	switch (command) {
	case DIAGIPC_PROCESS_INFO:
	case DIAGIPC_PROCESS_INFO2:
	case DIAGIPC_PROCESS_INFO3:
		/* The only ones whose right payload is none. */
		diagipc_put_header(out, command);
		break;
	case DIAGIPC_STOP_TRACING:
		if (!args || !args->session_id)
			return -EINVAL;
		diagipc_put_header(out, command);
		buf_put_u64(out, args->session_id);
		break;
	case DIAGIPC_COLLECT_TRACING2:
	case DIAGIPC_COLLECT_TRACING3:
	case DIAGIPC_COLLECT_TRACING4:
	case DIAGIPC_COLLECT_TRACING5:
	case DIAGIPC_COLLECT_TRACING6:
		if (!args || !diagipc_session_is_valid(&args->session))
			return -EINVAL;
		diagipc_put_header(out, command);
		diagipc_put_session(out, command, &args->session);
		break;
	default: return -EINVAL;
	}
	return diagipc_finish(out, start);
}

/* -- Choice of the session command ---------------------------------------------------- */

/*
 * CollectTracing3 is as new as 4 (both came with 9) and lacks the rundown keyword, so it is
 * never a first choice; 6 adds a mode that we do not want.
 */
enum diagipc_command diagipc_session_command(const struct diagipc_version *version)
{
	if (!version->major || version->major >= 10)
		return DIAGIPC_COLLECT_TRACING5;
	if (version->major == 9)
		return DIAGIPC_COLLECT_TRACING4;
	return DIAGIPC_COLLECT_TRACING2;
}

enum diagipc_command diagipc_session_fallback(enum diagipc_command command)
{
	switch (command) {
	case DIAGIPC_COLLECT_TRACING6: return DIAGIPC_COLLECT_TRACING5;
	case DIAGIPC_COLLECT_TRACING5: return DIAGIPC_COLLECT_TRACING4;
	case DIAGIPC_COLLECT_TRACING4: return DIAGIPC_COLLECT_TRACING3;
	case DIAGIPC_COLLECT_TRACING3: return DIAGIPC_COLLECT_TRACING2;
	default: return 0;
	}
}

/* -- Replies -------------------------------------------------------------------------- */

int diagipc_reply_parse(const void *bytes, size_t n, struct diagipc_reply *reply)
{
	struct diagipc_reply parsed = { 0 };
	struct reader r;
	uint8_t set, id;

	if (n && memcmp(bytes, diagipc_magic, MIN(n, sizeof(diagipc_magic))))
		return DIAGIPC_E_MALFORMED;
	if (n < DIAGIPC_HEADER_SIZE)
		return DIAGIPC_E_MORE;

	reader_init(&r, bytes, n);
	reader_skip(&r, sizeof(diagipc_magic));
	parsed.size = reader_u16(&r);
	set = reader_u8(&r);
	id = reader_u8(&r);
	reader_skip(&r, 2); /* reserved */
	if (parsed.size < DIAGIPC_HEADER_SIZE || set != DIAGIPC_REPLY_SET ||
	    (id != DIAGIPC_REPLY_OK && id != DIAGIPC_REPLY_ERROR))
		return DIAGIPC_E_MALFORMED;
	parsed.payload_size = parsed.size - DIAGIPC_HEADER_SIZE;
	if (id == DIAGIPC_REPLY_ERROR && parsed.payload_size < sizeof(parsed.hresult))
		return DIAGIPC_E_MALFORMED;
	parsed.payload = reader_bytes(&r, parsed.payload_size);
	if (r.bad)
		return DIAGIPC_E_MORE;

	if (id == DIAGIPC_REPLY_ERROR) {
		reader_init(&r, parsed.payload, parsed.payload_size);
		parsed.hresult = reader_u32(&r);
	}
	*reply = parsed;
	return id == DIAGIPC_REPLY_ERROR ? DIAGIPC_E_REFUSED : 0;
}

const char *diagipc_hresult_text(uint32_t hresult)
{
	static char text[sizeof("0x00000000")];

	switch (hresult) {
	case DIAGIPC_BAD_ENCODING: return "BAD_ENCODING";
	case DIAGIPC_UNKNOWN_COMMAND: return "UNKNOWN_COMMAND";
	case DIAGIPC_UNKNOWN_MAGIC: return "UNKNOWN_MAGIC";
	case DIAGIPC_NOT_SUPPORTED: return "NOT_SUPPORTED";
	case DIAGIPC_FAIL: return "FAIL";
	case DIAGIPC_NOT_YET_AVAILABLE: return "NOT_YET_AVAILABLE";
	case DIAGIPC_RUNTIME_UNINITIALIZED: return "RUNTIME_UNINITIALIZED";
	}
	snprintf(text, sizeof(text), "0x%08x", hresult);
	return text;
}

int diagipc_parse_session_id(const struct diagipc_reply *reply, uint64_t *idp)
{
	struct reader r;
	uint64_t id;

	reader_init(&r, reply->payload, reply->payload_size);
	id = reader_u64(&r);
	/* It is the address of the session; 0 could not be stopped again. */
	if (r.bad || !id)
		return DIAGIPC_E_MALFORMED;
	*idp = id;
	return 0;
}

/*
 * Text after a zero inside the string is not seen. The count is bounded by the bytes that are
 * there before anything is allocated for it.
 */
static int diagipc_read_string(struct reader *r, char **textp)
{
	uint32_t n = reader_u32(r);
	const uint8_t *units;
	char *text;

	if (r->bad || n > reader_left(r) / 2)
		return DIAGIPC_E_MALFORMED;
	units = reader_bytes(r, 2 * (size_t)n);
	if (n) {
		n--;
		if (units[2 * n] || units[2 * n + 1])
			return DIAGIPC_E_MALFORMED;
	}
	text = malloc(UTF8_PER_UNIT * (size_t)n + 1);
	if (!text)
		return -ENOMEM;
	text[utf8_from_u16(text, units, n)] = '\0';
	*textp = text;
	return 0;
}

int diagipc_parse_process_info(const struct diagipc_reply *reply, enum diagipc_command command,
			       struct diagipc_process_info *info)
{
	_cleanup_diagipc_process_info_ struct diagipc_process_info parsed = { 0 };
	char **fields[] = { &parsed.command_line, &parsed.os,           &parsed.arch,
			    &parsed.assembly,     &parsed.version_text, &parsed.rid };
	size_t i, n_fields;
	const uint8_t *cookie;
	struct reader r;

	*info = parsed;
	switch (command) {
	case DIAGIPC_PROCESS_INFO: n_fields = 3; break;
	case DIAGIPC_PROCESS_INFO2: n_fields = 5; break;
	case DIAGIPC_PROCESS_INFO3: n_fields = 6; break;
	default: return -EINVAL;
	}

	reader_init(&r, reply->payload, reply->payload_size);
	/* Versions only append, so every later one begins like 1, the first. */
	if (command == DIAGIPC_PROCESS_INFO3 && !reader_u32(&r))
		return DIAGIPC_E_MALFORMED;
	parsed.pid = reader_u64(&r);
	cookie = reader_bytes(&r, sizeof(parsed.cookie));
	if (r.bad)
		return DIAGIPC_E_MALFORMED;
	memcpy(parsed.cookie, cookie, sizeof(parsed.cookie));
	for (i = 0; i < n_fields; i++) {
		int e = diagipc_read_string(&r, fields[i]);

		if (e)
			return e;
	}
	if (parsed.version_text)
		diagipc_version_parse(parsed.version_text, &parsed.version);

	*info = parsed;
	parsed = (struct diagipc_process_info){ 0 };
	return 0;
}

void diagipc_process_info_deinit(struct diagipc_process_info *info)
{
	free(info->command_line);
	free(info->os);
	free(info->arch);
	free(info->assembly);
	free(info->version_text);
	free(info->rid);
	*info = (struct diagipc_process_info){ 0 };
}

/* A decimal number of at most nine digits, so that it cannot overflow. */
static bool diagipc_read_number(const char **textp, uint32_t *numberp)
{
	const char *s = *textp;
	uint32_t n = 0;

	while (*s >= '0' && *s <= '9' && s - *textp < 9)
		n = 10 * n + (uint32_t)(*s++ - '0');
	if (s == *textp || (*s >= '0' && *s <= '9'))
		return false;
	*textp = s;
	*numberp = n;
	return true;
}

void diagipc_version_parse(const char *text, struct diagipc_version *version)
{
	struct diagipc_version v = { 0 };
	uint32_t *parts[] = { &v.major, &v.minor, &v.patch };
	size_t i;

	*version = v;
	for (i = 0; i < ARRAY_SIZE(parts); i++) {
		if (i && *text++ != '.')
			return;
		if (!diagipc_read_number(&text, parts[i]))
			return;
	}
	*version = v;
}
