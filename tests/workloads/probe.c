/*
 * The independent oracle of "load churn": notes where the caller is running and when.
 * Generated methods call probe() themselves, so at that moment the noted address lies in
 * the machine code of the named method.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <time.h>

struct record {
	uint64_t addr;    /* return address: inside the caller's code, just after its call */
	uint64_t time_ns; /* CLOCK_MONOTONIC */
	uint64_t id;      /* what the caller passed */
};

static struct record *records;
static uint64_t capacity;
static _Atomic uint64_t used;

/* Reserves room; returns 0, or -1 without memory. Pages are only taken when written to. */
int probe_init(uint64_t count)
{
	void *p = mmap(NULL, count * sizeof *records, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return -1;
	records = p;
	capacity = count;
	return 0;
}

void probe(int id)
{
	struct timespec now;
	uint64_t i = atomic_fetch_add_explicit(&used, 1, memory_order_relaxed);

	if (i >= capacity)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	records[i].addr = (uint64_t)__builtin_return_address(0);
	records[i].time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	records[i].id = (uint64_t)(uint32_t)id;
}

/* How many calls were noted (calls beyond the capacity are not). */
uint64_t probe_count(void)
{
	uint64_t n = atomic_load(&used);
	return n < capacity ? n : capacity;
}

const struct record *probe_records(void)
{
	return records;
}
