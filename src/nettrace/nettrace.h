/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * nettrace: the trace stream of EventPipe, format V4 (Trace object 4/4), which every
 * runtime from .NET Core 3.0 to .NET 11 sends.
 *
 * Bytes in (any split), events out through callbacks; no I/O, clock, log or global
 * state. Flat memory on endless streams; 64-bit stream offsets; nothing seeks.
 * Format: NetTraceFormat.md of microsoft/perfview, and docs/ for what was measured.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

/* Why a stream was refused or ended. Positive codes of nettrace_feed() and nettrace_finish(). */
enum nettrace_error {
	NETTRACE_E_NOT_NETTRACE = 1, /* the first bytes are something else */
	NETTRACE_E_FORMAT_V3,        /* NetPerf (format 0) */
	NETTRACE_E_FORMAT_V6,        /* nettrace 6, of other producers */
	NETTRACE_E_VERSION,          /* any other version of the Trace object */
	NETTRACE_E_CORRUPT,          /* object framing lost: nothing after it can be read */
	NETTRACE_E_TRUNCATED,        /* nettrace_finish() only: the stream stops inside an object */
};

/* The Trace object: the head of every stream. */
struct nettrace_header {
	uint16_t year, month, day_of_week, day, hour, minute, second, millisecond; /* UTC */
	uint64_t sync_qpc;      /* timestamp at the moment of the date above */
	uint64_t qpc_frequency; /* ticks a second; 1,000,000,000 on Linux */
	uint32_t pointer_size;  /* bytes */
	uint32_t process_id;    /* as the process sees itself */
	uint32_t n_processors;
	uint32_t sampling_rate_ns;
};

/* What a MetadataBlock says of one kind of event. Lives as long as the decoder. */
struct nettrace_metadata {
	uint32_t id;
	uint32_t event_id;
	uint32_t version;
	const char *provider; /* UTF-8, NUL-terminated */
	/*
	 * For the user of the decoder: set by the metadata callback, handed back with
	 * each event, so that a layout is looked up once a kind and not once an event.
	 */
	const void *user;
};

struct nettrace_event {
	const struct nettrace_metadata *metadata;
	uint64_t timestamp; /* raw ticks of the header's clock: CLOCK_MONOTONIC ns on Linux */
	uint64_t thread_id; /* OS thread the event speaks of */
	uint64_t capture_thread;
	uint32_t sequence;
	uint32_t payload_size;
	const uint8_t *payload; /* borrowed: valid during the callback */
	bool sorted;            /* nothing older follows in the stream */
};

struct nettrace_callbacks {
	/* Each may be NULL. A negative return (own failure) ends nettrace_feed() with it. */
	int (*header)(void *data, const struct nettrace_header *header);
	int (*metadata)(void *data, struct nettrace_metadata *metadata);
	int (*event)(void *data, const struct nettrace_event *event);
	/* n events of one capture thread were dropped by the runtime, somewhere between the
	 * two timestamps (the last event seen of that thread, 0 if none, and the event or
	 * sequence point that shows the jump). */
	int (*lost)(void *data, uint64_t n, uint64_t from, uint64_t to);
	/* Every event up to this time has been delivered. */
	int (*sequence_point)(void *data, uint64_t timestamp);
};

struct nettrace_stats {
	uint64_t bytes;          /* fed, up to the end tag or the error */
	uint64_t blocks;         /* of all kinds, skipped ones included */
	uint64_t events;         /* delivered */
	uint64_t lost;           /* by sequence numbers */
	uint64_t bad_blocks;     /* ended early by a corrupt event; the stream went on */
	uint64_t unknown_blocks; /* skipped by size */
	uint64_t bad_metadata;   /* records not readable, past a cap, or of an id already taken */
	uint64_t orphan_events;  /* of a metadata id nobody announced */
	uint64_t untracked;      /* events of threads past CAP_THREADS: losses there go unseen */
	uint64_t last_timestamp; /* newest event or sequence point */
};

struct nettrace;

/* Returns 0 or -ENOMEM. The callbacks struct is copied. */
int nettrace_new(struct nettrace **outp, const struct nettrace_callbacks *callbacks, void *data);
void nettrace_free(struct nettrace *nt);

/*
 * Feeds the next n bytes. Returns 0, a negative errno (own failure or a callback's) or an
 * enum nettrace_error; after either every further call returns the same. Bytes after the
 * end tag are ignored.
 */
int nettrace_feed(struct nettrace *nt, const void *bytes, size_t n);

/*
 * Says that no more bytes come. Returns 0 if the stream may end here (see
 * nettrace_at_boundary), what nettrace_feed() returned if it failed, NETTRACE_E_NOT_NETTRACE
 * if there were too few bytes to tell, or NETTRACE_E_TRUNCATED. Whatever was complete has
 * been delivered in each case.
 */
int nettrace_finish(const struct nettrace *nt);

/* The end tag was read: the runtime closed the session in good order. */
bool nettrace_ended(const struct nettrace *nt);
/* The stream may stop here: the end tag was read, or a Trace object and no half object. */
bool nettrace_at_boundary(const struct nettrace *nt);
/* NULL until the Trace object was read. */
const struct nettrace_header *nettrace_get_header(const struct nettrace *nt);
const struct nettrace_stats *nettrace_get_stats(const struct nettrace *nt);
/*
 * One line for people, e.g. "not a nettrace stream (starts with 48 54 54 50 2f 31 2e 31)".
 * Valid until the next call.
 */
const char *nettrace_error_text(struct nettrace *nt, int error);

DEFINE_CLEANUP(struct nettrace *, nettrace_free)
