/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hostile client's bytes through the server's side, and a hostile server's through the client's.
 *
 * Held besides memory safety: the bytes cause no failure of our own; it makes no difference in
 * which pieces they come; and whatever was asked for, with whatever names, the reply is a message
 * that our own client takes, ASCII alone, with arrays of one length.
 */
#include <string.h>

#include "base/caps.h"
#include "base/hash.h"
#include "query/symbols.h"
#include "query/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* So low that inputs meet them, so high that real requests do not. */
static const struct wire_limits limits = {
	.bytes = 4096, .values = 200, .containers = 40, .depth = 8
};

static void check(bool good)
{
	if (!good)
		abort();
}

static size_t checked_size(json_t *parameters, const char *name)
{
	json_t *array = json_object_get(parameters, name);

	check(json_is_array(array));
	return json_array_size(array);
}

/* The reply as our client reads it. */
static void check_reply(const struct buf *reply, const struct query_answers *a)
{
	struct wire_reply parsed;
	struct wire wire;
	json_t *msg;
	uint8_t *p;
	size_t i, n, done;

	for (i = 0; i + 1 < reply->len; i++)
		check(reply->data[i] >= 0x20 && reply->data[i] < 0x7f);
	wire_init(&wire, &wire_reply_limits);
	for (done = 0; done < reply->len; done += n) {
		check(!wire_room(&wire, reply->len - done, &p, &n));
		memcpy(p, reply->data + done, n);
		wire_received(&wire, n);
	}
	check(!wire_next(&wire, &msg));
	check(!wire_pending(&wire));
	check(!wire_parse_reply(msg, &parsed) && !parsed.error && !parsed.continues);
	check(checked_size(parsed.parameters, "methods") == a->n_methods);
	check(checked_size(parsed.parameters, "method") == a->n);
	check(checked_size(parsed.parameters, "offset") == a->n);
	check(checked_size(parsed.parameters, "il_offset") == a->n);
	check(checked_size(parsed.parameters, "reason") == a->n);
	json_decref(msg);
	wire_deinit(&wire);
}

/* An answer for each address: names made of the input itself. */
static void answer(const struct query_resolve *req, const uint8_t *data, size_t size)
{
	_cleanup_buf_ struct buf reply;
	struct query_answers a;
	uint32_t method = 0;
	size_t i;

	buf_init(&reply, CAP_QUERY_OUT);
	query_answers_init(&a, CAP_QUERY_OUT);
	for (i = 0; i < req->n; i++) {
		uint64_t addr = req->items[i].addr;
		const char *text = (const char *)data + addr % (size + 1);
		size_t len = MIN(size - addr % (size + 1), (size_t)200);
		const struct query_method m = {
			.method_id = addr,
			.start = addr,
			.load = req->items[i].time,
			.unload = req->items[i].caller ? UINT64_MAX : addr,
			.tier = "ReadyToRun",
			.ns = text,
			.ns_len = len,
			.name = text,
			.name_len = len / 2,
			.sig = text,
			.function = text,
			.function_len = len,
			.module = addr & 1 ? text : NULL,
			.module_len = len,
		};

		if (addr % 3 == 0 || !a.n_methods)
			method = query_answers_method(&a, &m);
		if (addr % 5 == 0)
			query_answers_miss(&a, QUERY_REASON_UNMAPPED);
		else
			query_answers_hit(&a, method, (uint32_t)addr, (int64_t)addr);
	}
	check(!query_answers_reply(&a, req->start, req->wait_ms, &reply));
	check_reply(&reply, &a);
	query_answers_deinit(&a);
}

/* What is made of one message, both ways; a number that stands for it. */
static uint64_t take(json_t *msg, const uint8_t *data, size_t size)
{
	struct query_resolve req;
	struct wire_reply reply;
	struct wire_call call;
	const char *bad = NULL;
	uint64_t digest = 0;
	int r;

	r = wire_parse_reply(msg, &reply);
	check(!r || r == WIRE_E_SYNTAX);
	digest = hash_u64(digest, (uint64_t)r);
	r = wire_parse_call(msg, &call);
	check(!r || r == WIRE_E_SYNTAX);
	digest = hash_u64(digest, (uint64_t)r);
	if (r)
		return digest;
	r = query_resolve_parse(&req, call.parameters, &bad);
	check(r >= 0 && !r == !bad);
	digest = hash_u64(digest, (uint64_t)r);
	if (!r) {
		check(req.n <= limits.values && req.wait_ms <= CAP_QUERY_WAIT_MS && req.pid > 0);
		digest = hash_u64(digest, req.n);
		answer(&req, data, size);
	}
	query_resolve_deinit(&req);
	return digest;
}

/* All messages of the input, in pieces of at most `piece` bytes. */
static uint64_t run(const uint8_t *data, size_t size, size_t piece)
{
	uint64_t digest = 0;
	size_t done = 0;
	struct wire wire;
	json_t *msg;
	int r = 0;

	wire_init(&wire, &limits);
	while (done < size) {
		uint8_t *p;
		size_t n;

		r = wire_room(&wire, MIN(piece, size - done), &p, &n);
		check(r >= 0);
		if (r)
			break;
		memcpy(p, data + done, n);
		wire_received(&wire, n);
		done += n;
		while (!(r = wire_next(&wire, &msg))) {
			digest = hash_u64(digest, take(msg, data, size));
			json_decref(msg);
			wire_trim(&wire);
		}
		check(r > 0);
		check((r == WIRE_E_MORE) == !wire_ready(&wire));
		if (r != WIRE_E_MORE)
			break;
	}
	wire_deinit(&wire);
	return hash_u64(digest, (uint64_t)r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t whole = run(data, size, size);

	check(run(data, size, 1 + hash_bytes(1, data, size) % 16) == whole);
	return 0;
}
