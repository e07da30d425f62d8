/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code bytes: see code.h.
 *
 * A record and its bytes lie one after the other in one arena, found by a hash of (start, time of
 * the announcement): a body is one announcement at one place, so this finds the very body even
 * where ten thousand had the same address, and costs the same for each of them.
 *
 * What waits to be read is taken in the order of its coming, a batch at a time, and a batch by
 * address: bodies of one moment lie side by side, so a batch is a few reads. A body that was
 * retired meanwhile is dropped unread; its memory may be anything by now.
 *
 * /proc/PID/mem is opened once: the fd stays with the address space that it was opened on,
 * so after an exec it reads nothing, never the new program.
 */
#include "target/code.h"

#include <errno.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "target/peek.h"

#define CODE_BATCH 256u
/* One read takes bodies together that are no further apart, up to so many bytes. */
#define CODE_NEAR  1024u
#define CODE_RANGE KIB(64)

struct code_want {
	uint64_t start, announced;
	uint32_t size;
};

/* In the arena, 8-byte aligned; the bytes follow. */
struct code_record {
	uint64_t start, announced;
	uint64_t read_ns; /* when the bytes had been read */
	uint32_t size;
	uint32_t next; /* in its chain: place in the arena + 1 */
	uint8_t bytes[];
};

struct code {
	struct loop *loop;
	const struct proc *proc;
	const struct codemap *map;
	struct peek *peek;
	bool opened; /* or tried to */
	struct buf arena;
	uint32_t *heads;
	uint32_t n_heads; /* power of two */
	uint64_t seed;
	struct code_want *wanted; /* first wanted_at are done */
	uint32_t wanted_at, n_wanted, wanted_size;
	struct code_want batch[CODE_BATCH];
	uint32_t batch_at, n_batch;
	struct loop_work work;
	struct code_stats stats;
};

int code_new(struct code **outp, struct loop *loop, const struct proc *proc,
	     const struct codemap *map)
{
	struct code *c = calloc(1, sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->loop = loop;
	c->proc = proc;
	c->map = map;
	c->seed = hash_seed();
	buf_init(&c->arena, CAP_CODE_BYTES);
	*outp = c;
	return 0;
}

void code_free(struct code *c)
{
	if (!c)
		return;
	loop_work_del(&c->work);
	peek_free(c->peek);
	buf_deinit(&c->arena);
	free(c->heads);
	free(c->wanted);
	free(c);
}

/* -- Records ------------------------------------------------------------------------------ */

static struct code_record *record_at(const struct code *c, uint32_t place)
{
	return (struct code_record *)(void *)(c->arena.data + place);
}

static size_t record_bytes(uint32_t size)
{
	return (sizeof(struct code_record) + size + 7) & ~(size_t)7;
}

static uint32_t *record_head(const struct code *c, uint64_t start, uint64_t announced)
{
	return &c->heads[hash_u64(hash_u64(c->seed, start), announced) & (c->n_heads - 1)];
}

static struct code_record *record_find(const struct code *c, uint64_t start, uint64_t announced,
				       uint32_t size)
{
	uint32_t next;

	if (!c->n_heads)
		return NULL;
	for (next = *record_head(c, start, announced); next;) {
		struct code_record *record = record_at(c, next - 1);

		if (record->start == start && record->announced == announced &&
		    record->size == size)
			return record;
		next = record->next;
	}
	return NULL;
}

static void record_link(struct code *c, uint32_t place)
{
	struct code_record *record = record_at(c, place);
	uint32_t *head = record_head(c, record->start, record->announced);

	record->next = *head;
	*head = place + 1;
}

/* One chain a record, about. */
static int heads_reserve(struct code *c)
{
	uint32_t *heads, n = c->n_heads ? c->n_heads * 2 : 1024, place;

	if (c->stats.bodies < c->n_heads)
		return 0;
	heads = calloc(n, sizeof(*heads));
	if (!heads)
		return c->n_heads ? 0 : -ENOMEM;
	free(c->heads);
	c->heads = heads;
	c->n_heads = n;
	for (place = 0; place < c->arena.len;
	     place += (uint32_t)record_bytes(record_at(c, place)->size))
		record_link(c, place);
	return 0;
}

static bool has_room(const struct code *c, uint32_t size)
{
	return size <= CAP_CODE_BODY && record_bytes(size) <= CAP_CODE_BYTES - c->arena.len;
}

/* Returns 0, -ENOMEM or FULL. */
static int record_add(struct code *c, const struct code_want *want, const uint8_t *bytes,
		      uint64_t read_ns)
{
	size_t n = record_bytes(want->size);
	struct code_record *record;
	uint32_t place = (uint32_t)c->arena.len;
	int r;

	if (!has_room(c, want->size)) {
		c->stats.full++;
		return CODE_E_FULL;
	}
	r = heads_reserve(c);
	if (r < 0)
		return r;
	c->arena.error = 0;
	r = buf_reserve(&c->arena, n);
	if (r < 0)
		return r;
	c->arena.len += n;
	record = record_at(c, place);
	*record = (struct code_record){
		.start = want->start,
		.announced = want->announced,
		.read_ns = read_ns,
		.size = want->size,
	};
	memcpy(record->bytes, bytes, want->size);
	record_link(c, place);
	c->stats.bodies++;
	c->stats.bytes += want->size;
	return 0;
}

/* -- Reading ------------------------------------------------------------------------------ */

/* Returns 0, -errno or UNREADABLE, also ever after. */
static int code_open(struct code *c)
{
	int fd, r;

	if (c->opened)
		return c->peek ? 0 : CODE_E_UNREADABLE;
	c->opened = true;
	r = proc_open_mem(c->proc, &fd);
	if (r == PROC_E_DENIED)
		log_warn("pid %d: no code bytes: %s", (int)c->proc->pid,
			 proc_error_text(c->proc, r, NULL));
	if (r == 0)
		r = peek_new(&c->peek, fd);
	return r > 0 ? CODE_E_UNREADABLE : r;
}

/*
 * The moment of a read is the one after it: until then the bytes may have changed. false: nothing
 * can be read at all.
 */
static bool code_read(struct code *c, uint64_t start, size_t size, const uint8_t **bytesp,
		      size_t *np, uint64_t *timep)
{
	if (peek_read(c->peek, start, size, bytesp, np))
		return false;
	*timep = clock_now_ns();
	return true;
}

/* Is that body alive, and was it before now? */
static bool is_alive(const struct code *c, const struct code_want *want)
{
	const struct codemap_body *body = codemap_lookup(c->map, want->start, NULL);
	struct codemap_info info;

	if (!body)
		return false;
	codemap_body_info(c->map, body, &info);
	return info.start == want->start && info.announced == want->announced &&
	       info.size == want->size && info.announced <= clock_now_ns();
}

static int code_read_one(struct code *c, const struct code_want *want)
{
	const uint8_t *bytes = NULL;
	uint64_t time;
	size_t n;

	if (!has_room(c, want->size)) {
		c->stats.full++;
		return CODE_E_FULL;
	}
	if (!code_read(c, want->start, want->size, &bytes, &n, &time) || n < want->size) {
		c->stats.unreadable++;
		return CODE_E_UNREADABLE;
	}
	return record_add(c, want, bytes, time);
}

int code_keep(struct code *c, const struct codemap_info *info)
{
	struct code_want want = { info->start, info->announced, info->size };
	const uint8_t *bytes;
	int r;

	r = code_get(c, info, UINT64_MAX, &bytes);
	if (r != CODE_E_NONE)
		return r;
	/* what a loss has made doubtful stays so: a second look would be no better */
	if (!is_alive(c, &want) || codemap_lost_between(c->map, info->announced, clock_now_ns()))
		return CODE_E_DOUBT;
	r = code_open(c);
	return r ? r : code_read_one(c, &want);
}

/* -- What waits --------------------------------------------------------------------------- */

static int by_start(const void *a, const void *b)
{
	const struct code_want *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* The next batch: of those that came first what is still there, each once. */
static void batch_take(struct code *c)
{
	uint32_t n = 0, i;

	while (c->wanted_at < c->n_wanted && n < CODE_BATCH) {
		const struct code_want *want = &c->wanted[c->wanted_at++];

		if (!is_alive(c, want))
			c->stats.gone++;
		else if (!record_find(c, want->start, want->announced, want->size))
			c->batch[n++] = *want;
	}
	if (c->wanted_at == c->n_wanted)
		c->wanted_at = c->n_wanted = 0;
	qsort(c->batch, n, sizeof(*c->batch), by_start);
	c->batch_at = c->n_batch = 0;
	for (i = 0; i < n; i++)
		if (!i || c->batch[i].start != c->batch[i - 1].start)
			c->batch[c->n_batch++] = c->batch[i];
}

/* How many from the batch's place on can be read together, and the bytes that they span. */
static uint32_t batch_range(const struct code *c, size_t *spanp)
{
	const struct code_want *first = &c->batch[c->batch_at];
	uint64_t stop = first->start + first->size;
	uint32_t n;

	for (n = 1; c->batch_at + n < c->n_batch; n++) {
		const struct code_want *want = &first[n];

		if (want->start > stop + CODE_NEAR ||
		    want->start + want->size > first->start + CODE_RANGE)
			break;
		stop = MAX(stop, want->start + want->size);
	}
	*spanp = (size_t)(stop - first->start);
	return n;
}

/* One read. Where it ends early, what it did not reach is read by itself. */
static void batch_step(struct code *c)
{
	const struct code_want *first = &c->batch[c->batch_at];
	const uint8_t *bytes = NULL;
	size_t span, got = 0;
	uint32_t n = batch_range(c, &span), i, done = 0;
	uint64_t time = 0;

	c->batch_at += n;
	if (n > 1) {
		if (!code_read(c, first->start, span, &bytes, &got, &time))
			got = 0;
		for (; done < n; done++) {
			uint64_t offset = first[done].start - first->start;

			if (offset + first[done].size > got)
				break;
			record_add(c, &first[done], bytes + offset, time);
		}
	}
	for (i = done; i < n; i++)
		code_read_one(c, &first[i]);
}

static bool code_work(struct loop_work *work, uint64_t deadline_ns)
{
	struct code *c = container_of(work, struct code, work);

	if (code_open(c)) {
		c->stats.unreadable += c->n_wanted - c->wanted_at;
		c->wanted_at = c->n_wanted = 0;
		return false;
	}
	do {
		if (c->batch_at == c->n_batch)
			batch_take(c);
		if (c->batch_at < c->n_batch)
			batch_step(c);
	} while ((c->batch_at < c->n_batch || c->n_wanted) && clock_now_ns() < deadline_ns);
	return c->batch_at < c->n_batch || c->n_wanted;
}

/* Room for one more: at the front, if much has been done there or nothing else is left. */
static bool wanted_reserve(struct code *c)
{
	uint32_t size = c->wanted_size ? c->wanted_size * 2 : 256;
	void *wanted;

	if (c->n_wanted < c->wanted_size)
		return true;
	if (c->wanted_at && (c->wanted_at >= c->wanted_size / 2 || size > CAP_CODE_PENDING)) {
		c->n_wanted -= c->wanted_at;
		memmove(c->wanted, c->wanted + c->wanted_at, c->n_wanted * sizeof(*c->wanted));
		c->wanted_at = 0;
		return true;
	}
	wanted = size <= CAP_CODE_PENDING ? realloc(c->wanted, size * sizeof(*c->wanted)) : NULL;
	if (!wanted)
		return false;
	c->wanted = wanted;
	c->wanted_size = size;
	return true;
}

void code_want(struct code *c, const struct codemap_info *info)
{
	if (!wanted_reserve(c)) {
		c->stats.full++;
		return;
	}
	c->wanted[c->n_wanted++] = (struct code_want){ info->start, info->announced, info->size };
	loop_work_add(c->loop, &c->work, code_work);
}

/* -- Answers ------------------------------------------------------------------------------ */

int code_get(const struct code *c, const struct codemap_info *info, uint64_t known_until,
	     const uint8_t **bytesp)
{
	const struct code_record *record = record_find(c, info->start, info->announced, info->size);
	const struct codemap_body *body;
	struct codemap_info then;

	if (!record)
		return CODE_E_NONE;
	body = codemap_lookup_at(c->map, record->start, record->read_ns, NULL);
	if (!body)
		return CODE_E_DOUBT;
	codemap_body_info(c->map, body, &then);
	if (then.start != info->start || then.size != info->size ||
	    then.announced != info->announced || then.method_id != info->method_id ||
	    then.version != info->version ||
	    codemap_lost_between(c->map, record->announced, record->read_ns))
		return CODE_E_DOUBT;
	if (known_until < record->read_ns)
		return CODE_E_NOT_YET;
	*bytesp = record->bytes;
	return 0;
}

void code_get_stats(const struct code *c, struct code_stats *stats)
{
	*stats = c->stats;
	stats->memory = sizeof(*c) + c->arena.size + c->n_heads * sizeof(*c->heads) +
			c->wanted_size * sizeof(*c->wanted);
}

const char *code_error_text(int error)
{
	switch ((enum code_error)error) {
	case CODE_E_NONE: return "never read";
	case CODE_E_NOT_YET: return "not settled yet";
	case CODE_E_DOUBT: return "other code may have been there";
	case CODE_E_UNREADABLE: return "memory cannot be read";
	case CODE_E_FULL: return "over a cap";
	}
	return strerror(-error);
}
