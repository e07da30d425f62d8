/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolve: addresses and times to methods.
 *
 * A batch is answered in slices, between which the code map may change and bodies may go: so what
 * is kept from one slice to the next is the text of the reply and the identity of each method in it
 * (start and load time), never a body. An answer is judged final by what was known when it was
 * given; the reply tells the least of these times.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/hash.h"
#include "reply/reply.h"

/* Addresses between two looks at the clock. */
#define BATCH 128u
/* Text of an ordinary reply: so much is kept for the next. */
#define SPARE_BYTES MIB(4)
/* How often a held reply looks whether its time is known. */
#define POLL_NS MS_NS(10)

/* A method of the reply. */
struct told {
	uint64_t start, load;
	uint32_t index; /* + 1; 0: free */
};

struct resolve {
	struct op op;
	struct query_resolve req;
	pid_t pid; /* in our numbers */
	struct query_answers answers;
	struct told *told; /* open addressing, by start and load */
	uint32_t told_mask;
	struct buf function;
	size_t at;
	uint64_t newest; /* latest time asked for */
	uint64_t hold_until_ns;
	uint64_t known_until;
	bool provisional;
	uint64_t hits;
	size_t text_memory; /* of op.memory */
	/* of the slice: the entry asked last, and what holds for it */
	struct entry *entry;
	bool denied;
	uint64_t entry_known, now;
};

static void resolve_free(struct op *op)
{
	struct resolve *r = container_of(op, struct resolve, op);

	query_resolve_deinit(&r->req);
	query_answers_deinit(&r->answers);
	buf_deinit(&r->function);
	free(r->told);
	free(r);
}

/* Its index in methods[], added if new. Returns a negative errno without memory. */
static int64_t tell(struct resolve *r, const struct codemap *map, const struct codemap_body *body,
		    const struct codemap_info *life)
{
	uint64_t at = hash_u64(life->load, life->start);
	struct codemap_info info;
	struct query_method m;
	int e;

	for (;; at++) {
		struct told *told = &r->told[at & r->told_mask];

		if (told->index && told->start == life->start && told->load == life->load)
			return told->index - 1;
		if (told->index)
			continue;
		codemap_body_info(map, body, &info);
		e = reply_method(&info, &r->function, &m);
		if (e < 0)
			return e;
		*told = (struct told){ life->start, life->load,
				       query_answers_method(&r->answers, &m) + 1 };
		return told->index - 1;
	}
}

static int answer_hit(struct resolve *r, const struct query_address *q, const struct codemap *map,
		      const struct codemap_body *body)
{
	struct codemap_info life;
	uint32_t offset;
	int64_t index;

	codemap_body_life(map, body, &life);
	index = tell(r, map, body, &life);
	if (index < 0)
		return (int)index;
	offset = (uint32_t)(q->addr - life.start);
	r->hits++;
	query_answers_hit(&r->answers, (uint32_t)index, offset,
			  reply_il(map, body, offset - q->caller));
	return 0;
}

static int answer(struct resolve *r, const struct query_address *q)
{
	const struct codemap *map = target_map(r->entry->target);
	uint64_t addr = q->addr - (q->caller && q->addr);
	const struct codemap_body *body;
	enum codemap_miss miss;
	struct entry *entry = r->entry;
	char reason[REPLY_REASON_SIZE];
	int e;

	body = q->time ? codemap_lookup_certain(map, addr, q->time, &miss)
		       : codemap_lookup(map, addr, &miss);
	if (body)
		return answer_hit(r, q, map, body);
	e = entry->places ? 0 : places_new(&entry->places);
	if (e == 0)
		e = reply_reason(map, entry->places, entry->proc, addr, q->time ? q->time : r->now,
				 miss, r->now, reason);
	if (e == 0)
		query_answers_miss(&r->answers, reason);
	return e;
}

/* The entry for the time; keeps what holds for it. */
static void choose_entry(struct conn *c, struct resolve *r, uint64_t time)
{
	struct entry *e = registry_find(c->srv->reg, r->pid, r->req.start, time);

	if (e == r->entry)
		return;
	r->entry = e;
	r->denied = e && !access_entry(c, e);
	r->entry_known = e && !r->denied ? target_known_until(e->target) : 0;
	/* where there is none nothing is final, whatever is known of the others */
	if (e)
		r->known_until = MIN(r->known_until, r->entry_known);
	if (e && !r->denied)
		entry_touch(e, c->peer.uid);
}

static int answer_some(struct conn *c, struct resolve *r, size_t end)
{
	for (; r->at < end; r->at++) {
		const struct query_address *q = &r->req.items[r->at];
		int e = 0;

		choose_entry(c, r, q->time);
		if (!r->entry)
			query_answers_miss(&r->answers, QUERY_REASON_NOT_ATTACHED);
		else if (r->denied)
			query_answers_miss(&r->answers, QUERY_REASON_DENIED);
		else
			e = answer(r, q);
		if (e < 0)
			return e;
		r->provisional |= !q->time || q->time > r->entry_known;
	}
	return 0;
}

/* Held until the newest time is known, for as long as was asked for. */
static bool hold(struct conn *c, struct resolve *r)
{
	struct entry *e;
	uint64_t now;

	if (!r->req.wait_ms || r->at)
		return false;
	now = clock_now_ns();
	if (!r->hold_until_ns)
		r->hold_until_ns = now + MS_NS(r->req.wait_ms);
	e = registry_find(c->srv->reg, r->pid, r->req.start, r->newest);
	if (now >= r->hold_until_ns || !e || e->ended || !access_entry(c, e) ||
	    target_known_until(e->target) >= r->newest)
		return false;
	r->op.wake_ns = MIN(now + POLL_NS, r->hold_until_ns);
	return true;
}

static size_t text_memory(const struct resolve *r)
{
	const struct query_answers *a = &r->answers;

	return a->methods.size + a->method.size + a->offset.size + a->il_offset.size +
	       a->reason.size;
}

static enum op_result resolve_step(struct conn *c, struct op *op, uint64_t deadline_ns)
{
	struct resolve *r = container_of(op, struct resolve, op);
	int e = 0;

	if (hold(c, r))
		return OP_WAIT;
	r->entry = NULL;
	r->entry_known = 0;
	for (;;) {
		r->now = clock_now_ns();
		if (r->at && r->now >= deadline_ns) {
			op->memory += text_memory(r) - r->text_memory;
			r->text_memory = text_memory(r);
			return OP_MORE;
		}
		e = answer_some(c, r, MIN(r->at + BATCH, r->req.n));
		if (e < 0 || r->at == r->req.n)
			break;
	}
	c->srv->stats.addresses += r->req.n;
	c->srv->stats.hits += r->hits;
	if (r->known_until == UINT64_MAX)
		r->known_until = 0;
	if (e == 0)
		e = query_answers_reply(&r->answers, r->known_until, !r->provisional, &c->out);
	conn_written(c, e);
	/* its memory serves the next one */
	if (!c->srv->answers.method.data && text_memory(r) <= SPARE_BYTES) {
		query_answers_clear(&r->answers);
		c->srv->answers = r->answers;
		r->answers = (struct query_answers){ 0 };
	}
	return OP_DONE;
}

/* Table and text for the request at hand. */
static int prepare(struct conn *c, struct resolve *r)
{
	uint32_t size = 64;
	size_t i;

	while (size < r->req.n * 2)
		size *= 2;
	r->told = calloc(size, sizeof(*r->told));
	if (!r->told)
		return -ENOMEM;
	r->told_mask = size - 1;
	for (i = 0; i < r->req.n; i++)
		r->newest = MAX(r->newest, r->req.items[i].time);
	r->answers = c->srv->answers;
	query_answers_init(&c->srv->answers, CAP_QUERY_OUT);
	r->op.memory = sizeof(*r) + size * sizeof(*r->told) + r->req.n * sizeof(*r->req.items);
	return 0;
}

void method_resolve(struct conn *c, json_t *parameters)
{
	struct resolve *r = calloc(1, sizeof(*r));
	const char *bad;
	pid_t theirs;
	int e;

	if (!r) {
		conn_fail(c, -ENOMEM);
		return;
	}
	r->op.step = resolve_step;
	r->op.free = resolve_free;
	r->known_until = UINT64_MAX;
	buf_init(&r->function, CAP_QUERY_OUT);
	e = query_resolve_parse(&r->req, parameters, &bad);
	if (e > 0)
		conn_bad_parameter(c, bad);
	theirs = r->req.pid;
	if (e == 0) {
		e = access_pid(c, theirs, &r->pid);
		/* a pid of its own world that is gone is like one that is not attached */
		if (e == PROC_E_GONE)
			e = r->pid = 0;
		else if (e > 0)
			access_pid_error(c, theirs, e);
	}
	if (e == 0)
		e = prepare(c, r);
	if (e < 0)
		conn_fail(c, e);
	if (e)
		resolve_free(&r->op);
	else
		conn_start(c, &r->op);
}
