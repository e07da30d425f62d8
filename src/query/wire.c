/* SPDX-License-Identifier: Apache-2.0 */
/*
 * varlink's framing: bytes in, JSON objects out, and back.
 *
 * A message is looked at three times. As it comes, only for the NUL that ends it: that makes a
 * message of any length cost its length, however small the pieces. When it is whole, its marks
 * (brackets, commas, colons, quotes) are counted, which bounds from above what parsing can make of
 * it, before anything is allocated. Then jansson parses it, and is the one judge of its syntax:
 * the count reads strings as jansson does, and where it is misled jansson stops.
 *
 * Memory: jansson 2.14 takes no notice when the buffer of its tokens cannot grow. It goes on
 * with a character missing, and reads and writes past its memory if that was the closing quote. The
 * other allocations of it are checked. So what a message can take at most is asked of malloc just
 * before, and given back: where memory is short, it is found out there.
 */
#include "query/wire.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "query/text.h"

/* An empty wire keeps a buffer of this size, which also is the first read's. */
#define WIRE_KEEP KIB(4)

const struct wire_limits wire_request_limits = {
	.bytes = CAP_QUERY_REQUEST,
	.values = CAP_QUERY_VALUES,
	.containers = CAP_QUERY_CONTAINERS,
	.depth = CAP_QUERY_DEPTH,
};

/* A method is an object of 24 values. */
const struct wire_limits wire_reply_limits = {
	.bytes = CAP_QUERY_REPLY,
	.values = CAP_QUERY_REPLY_VALUES,
	.containers = CAP_QUERY_REPLY_VALUES / 8,
	.depth = CAP_QUERY_DEPTH,
};

/* -- Bytes to messages ---------------------------------------------------------------- */

void wire_init(struct wire *wire, const struct wire_limits *limits)
{
	*wire = (struct wire){ .limits = limits };
	buf_init(&wire->in, 2 * limits->bytes);
}

void wire_deinit(struct wire *wire)
{
	buf_deinit(&wire->in);
}

size_t wire_pending(const struct wire *wire)
{
	return wire->in.len - wire->taken;
}

bool wire_ready(const struct wire *wire)
{
	return wire->tail > wire->taken;
}

int wire_room(struct wire *wire, size_t max, uint8_t **pp, size_t *np)
{
	size_t unfinished = wire->in.len - wire->tail, left, n;
	int r;

	if (unfinished >= wire->limits->bytes || wire->tail - wire->taken >= wire->limits->bytes)
		return WIRE_E_TOO_BIG;
	left = wire->limits->bytes - unfinished;
	if (wire->taken) {
		buf_consume(&wire->in, wire->taken);
		wire->tail -= wire->taken;
		wire->taken = 0;
	}
	n = wire->in.size - wire->in.len;
	if (!n) {
		n = MAX(wire->in.len, WIRE_KEEP);
		n = MIN(n, left);
		r = buf_reserve(&wire->in, n);
		if (r < 0)
			return r;
	}
	/* so a message is never longer than the limit, even if its end comes in this read */
	n = MIN(n, left);
	*pp = wire->in.data + wire->in.len;
	*np = MIN(n, max);
	return 0;
}

void wire_received(struct wire *wire, size_t n)
{
	const uint8_t *end;

	if (!n)
		return;
	end = memrchr(wire->in.data + wire->in.len, '\0', n);
	wire->in.len += n;
	if (end)
		wire->tail = (size_t)(end - wire->in.data) + 1;
}

size_t wire_memory(const struct wire *wire)
{
	return wire->in.size;
}

void wire_trim(struct wire *wire)
{
	if (!wire_pending(wire) && wire->in.size > WIRE_KEEP) {
		buf_deinit(&wire->in);
		wire->taken = wire->tail = 0;
	}
}

enum mark {
	MARK_NONE,
	MARK_SEPARATOR,
	MARK_OPEN,
	MARK_CLOSE,
	MARK_QUOTE,
};

static const uint8_t marks[256] = {
	[','] = MARK_SEPARATOR, [':'] = MARK_SEPARATOR, ['['] = MARK_OPEN,  ['{'] = MARK_OPEN,
	[']'] = MARK_CLOSE,     ['}'] = MARK_CLOSE,     ['"'] = MARK_QUOTE,
};

struct count {
	size_t values, containers;
	size_t longest; /* of all tokens */
};

/*
 * Every value and every name of a member follows an opening bracket, a comma or a colon, but for
 * the first. Returns 0 or TOO_BIG.
 */
static int count_values(const uint8_t *p, size_t n, const struct wire_limits *limits,
			struct count *count)
{
	size_t i, last = 0;
	unsigned int depth = 0;

	*count = (struct count){ .values = 1 };
	for (i = 0; i < n; i++) {
		enum mark mark = marks[p[i]];

		if (likely(mark == MARK_NONE))
			continue;
		count->longest = MAX(count->longest, i - last);
		last = i + 1;
		if (mark == MARK_QUOTE) {
			for (i++; i < n && p[i] != '"'; i++)
				i += p[i] == '\\';
			i = MIN(i, n);
			count->longest = MAX(count->longest, i - last);
			last = i;
			continue;
		}
		if (mark == MARK_CLOSE) {
			depth -= depth > 0;
			continue;
		}
		if (mark == MARK_OPEN &&
		    (++depth > limits->depth || ++count->containers > limits->containers))
			return WIRE_E_TOO_BIG;
		if (++count->values > limits->values)
			return WIRE_E_TOO_BIG;
	}
	count->longest = MAX(count->longest, n - last);
	return 0;
}

/*
 * Sizes of jansson 2.14 with malloc's own, rounded up: a value and its place, the tables of an
 * empty object; a token's buffer while it doubles, and the copies of it.
 */
static bool memory_suffices(const struct count *count, size_t n)
{
	size_t need = 100 * count->values + 250 * count->containers + 6 * count->longest + n + 256;
	void *volatile p = malloc(need); /* volatile: or the compiler leaves both calls out */
	bool good = p;

	free(p);
	return good;
}

int wire_next(struct wire *wire, json_t **msgp)
{
	struct count count;
	json_error_t error;
	const char *text;
	json_t *msg;
	size_t n;
	int r;

	if (!wire_ready(wire))
		return WIRE_E_MORE;
	text = (const char *)wire->in.data + wire->taken;
	n = strlen(text);
	r = count_values((const uint8_t *)text, n, wire->limits, &count);
	if (r)
		return r;
	if (!memory_suffices(&count, n))
		return -ENOMEM;
	msg = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
	if (!msg)
		return json_error_code(&error) == json_error_unknown ? -ENOMEM : WIRE_E_SYNTAX;
	if (!json_is_object(msg)) {
		json_decref(msg);
		return WIRE_E_SYNTAX;
	}
	wire->taken += n + 1;
	if (!wire_pending(wire)) {
		buf_clear(&wire->in);
		wire->taken = wire->tail = 0;
	}
	*msgp = msg;
	return 0;
}

/* -- Messages to their parts ---------------------------------------------------------- */

/* Absent and null are false, as clients write out the flags they do not use. */
static bool take_flag(json_t *msg, const char *name, bool *flagp)
{
	json_t *value = json_object_get(msg, name);

	*flagp = json_is_true(value);
	return !value || json_is_boolean(value) || json_is_null(value);
}

static bool take_parameters(json_t *msg, json_t **parametersp)
{
	json_t *value = json_object_get(msg, "parameters");

	*parametersp = json_is_object(value) ? value : NULL;
	return !value || json_is_object(value) || json_is_null(value);
}

int wire_parse_call(json_t *msg, struct wire_call *call)
{
	call->method = json_string_value(json_object_get(msg, "method"));
	if (!call->method || !take_parameters(msg, &call->parameters) ||
	    !take_flag(msg, "more", &call->more) || !take_flag(msg, "oneway", &call->oneway) ||
	    !take_flag(msg, "upgrade", &call->upgrade))
		return WIRE_E_SYNTAX;
	return 0;
}

int wire_parse_reply(json_t *msg, struct wire_reply *reply)
{
	json_t *error = json_object_get(msg, "error");

	reply->error = json_string_value(error);
	if ((error && !reply->error && !json_is_null(error)) ||
	    !take_parameters(msg, &reply->parameters) ||
	    !take_flag(msg, "continues", &reply->continues))
		return WIRE_E_SYNTAX;
	/* an error ends a stream; an empty name would be none */
	if (reply->error && (!*reply->error || reply->continues))
		return WIRE_E_SYNTAX;
	return 0;
}

/* -- Messages to bytes ---------------------------------------------------------------- */

static int put_dump(const char *data, size_t n, void *out)
{
	return buf_append(out, data, n) < 0 ? -1 : 0;
}

static int put_parameters(struct buf *out, json_t *parameters)
{
	int r;

	buf_puts(out, "\"parameters\":");
	if (!parameters)
		return buf_puts(out, "{}");
	r = json_dump_callback(parameters, put_dump, out, JSON_COMPACT | JSON_ENSURE_ASCII);
	if (out->error)
		return out->error;
	return r < 0 ? -ENOMEM : 0;
}

/* Ends the message that began at start, or takes all of it back. */
static int put_end(struct buf *out, size_t start, int r, const char *end)
{
	if (!r) {
		buf_puts(out, end);
		r = buf_putc(out, '\0');
	}
	if (r < 0)
		out->len = start;
	return r;
}

static int put_named(struct buf *out, const char *kind, const char *name, json_t *parameters,
		     const char *end)
{
	size_t start = out->len;

	buf_puts(out, kind);
	text_put_string(out, name, strlen(name));
	buf_putc(out, ',');
	return put_end(out, start, put_parameters(out, parameters), end);
}

int wire_put_call(struct buf *out, const char *method, json_t *parameters, bool more)
{
	return put_named(out, "{\"method\":", method, parameters, more ? ",\"more\":true}" : "}");
}

int wire_put_error(struct buf *out, const char *error, json_t *parameters)
{
	return put_named(out, "{\"error\":", error, parameters, "}");
}

static const char *reply_end(bool continues)
{
	return continues ? ",\"continues\":true}" : "}";
}

int wire_put_reply(struct buf *out, json_t *parameters, bool continues)
{
	size_t start = out->len;

	buf_putc(out, '{');
	return put_end(out, start, put_parameters(out, parameters), reply_end(continues));
}

int wire_begin_reply(struct buf *out)
{
	return buf_puts(out, "{\"parameters\":");
}

int wire_end_reply(struct buf *out, bool continues)
{
	buf_puts(out, reply_end(continues));
	return buf_putc(out, '\0');
}
