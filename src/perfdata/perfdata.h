/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * perfdata: perf.data in, perf.data out.
 *
 * Reads what `perf record` wrote, as a file (header, data section, features) or as a stream (a
 * 16-byte header, then records only; spooled to a file first), record by record in file order, any
 * number of times, in flat memory. Compressed records (-z) come out decompressed. A writer
 * makes a new file of the same form from the records it is given; what it is given unchanged comes
 * out byte for byte.
 *
 * Only little-endian files are read (perf writes the byte order of the recording machine).
 * Format: tools/perf/Documentation/perf.data-file-format.txt and
 * include/uapi/linux/perf_event.h of the kernel.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util.h"

struct perfdata;
struct perfdata_writer;

enum perfdata_error {
	PERFDATA_E_NOT_PERF = 1, /* no perf.data at all */
	PERFDATA_E_VERSION,      /* an old or foreign form (PERFFILE, other byte order) */
	PERFDATA_E_TRUNCATED,    /* ends inside a record or section */
	PERFDATA_E_CORRUPT,      /* sizes, offsets or ids that cannot be */
	PERFDATA_E_COMPRESSED,   /* -z data that zstd refuses, or of a kind not known */
	PERFDATA_E_END,          /* of perfdata_next(): no more records */
};

/* Record types that are looked into; every other one is passed on as it is. */
enum perfdata_type {
	PERFDATA_MMAP = 1,
	PERFDATA_LOST = 2,
	PERFDATA_COMM = 3,
	PERFDATA_EXIT = 4,
	PERFDATA_FORK = 7,
	PERFDATA_SAMPLE = 9,
	PERFDATA_MMAP2 = 10,
	PERFDATA_ATTR = 64, /* first type that the kernel does not make */
	PERFDATA_TRACING_DATA = 66,
	PERFDATA_FINISHED_ROUND = 68,
	PERFDATA_AUXTRACE = 71,
	PERFDATA_FEATURE = 80,
	PERFDATA_COMPRESSED = 81,
	PERFDATA_COMPRESSED2 = 83, /* of newer perf: says the size of its data, and is padded */
};

/* misc */
#define PERFDATA_MISC_CPUMODE   0x0007u /* 1 kernel, 2 user, 3 hypervisor, 4, 5 guest */
#define PERFDATA_MISC_MMAP_DATA 0x2000u /* MMAP*: not executable */
#define PERFDATA_MISC_COMM_EXEC 0x2000u /* COMM: exec */
#define PERFDATA_MISC_BUILD_ID  0x4000u /* MMAP2: holds a build-id */

/* User-space and kernel markers in call chains are values from here on up. */
#define PERFDATA_CONTEXT_MAX  ((uint64_t)-4095)
#define PERFDATA_CONTEXT_USER ((uint64_t)-512)

/* Features of the header, and of FEATURE records. */
enum perfdata_feature {
	PERFDATA_FEAT_HOSTNAME = 3,
	PERFDATA_FEAT_AUXTRACE = 18,
	PERFDATA_FEAT_COMPRESSED = 27,
	PERFDATA_FEAT_CLOCK_DATA = 29,
};

struct perfdata_record {
	uint32_t type;
	uint16_t misc, size;
	const uint8_t *bytes; /* size bytes, header included; until the next call */
	uint64_t payload; /* bytes that follow the record (AUXTRACE, TRACING_DATA), not in bytes */
	uint64_t offset;  /* in the input; of the COMPRESSED record it came from */
};

/* Identity of a record of the kernel: SAMPLE, or the trailer that sample_id_all adds. */
struct perfdata_id {
	uint32_t pid, tid; /* 0 when not recorded */
	uint64_t time;     /* 0 when not recorded, or made by perf itself at its start */
	bool has_time;     /* the attr has TIME: time is what the kernel wrote */
};

struct perfdata_mmap {
	uint32_t pid, tid;
	uint64_t addr, len, pgoff;
	const char *name; /* inside the record, without the padding */
	uint32_t name_len;
	uint32_t name_room; /* bytes that a name may take without a change of size, NUL included */
	bool executable;
	bool has_build_id; /* MMAP2 only */
	const uint8_t
		*inode; /* MMAP2: the 24 bytes of device, inode, generation or build-id; or NULL */
	uint32_t prot, flags; /* MMAP2 */
	struct perfdata_id id;
};

struct perfdata_task { /* FORK, EXIT, COMM (no ppid) */
	uint32_t pid, ppid, tid;
	uint64_t time; /* of the body, some ns after the trailer's; COMM: of the trailer */
	bool exec;     /* COMM */
};

struct perfdata_sample {
	struct perfdata_id id;
	uint64_t ip; /* 0 when not recorded */
	bool user;   /* cpumode of ip */
	bool has_ip;
	const uint8_t *chain; /* n_chain little-endian u64, markers included; or NULL */
	uint64_t n_chain;
};

/* What the header says of time. */
struct perfdata_clock {
	bool has_time; /* every attr that samples has TIME */
	bool use_clockid;
	int32_t clockid; /* with use_clockid */
	bool has_pair;   /* CLOCK_DATA */
	uint64_t wall_ns, clock_ns;
};

/*
 * Opens a regular file (either form). part_of: the main file of a directory that
 * `perf record --threads` wrote, whose attrs a part without a header uses (it outlives the part);
 * else NULL. The fd is borrowed and read with pread only. Returns 0, -errno or a code; on a code
 * *outp is set, too, for perfdata_error_text() and perfdata_free() only.
 */
int perfdata_open(struct perfdata **outp, int fd, const struct perfdata *part_of);
void perfdata_free(struct perfdata *p);
/* "truncated: record of 96 bytes at offset 4711 needs 40 more": valid until the next call. */
const char *perfdata_error_text(const struct perfdata *p, int error);

bool perfdata_is_pipe(const struct perfdata *p);
uint64_t perfdata_size(const struct perfdata *p); /* of the file, for progress */
/* Do samples hold code addresses elsewhere than in ip and chain: stacks, branches, data? */
bool perfdata_has_hidden_addresses(const struct perfdata *p);
void perfdata_get_clock(const struct perfdata *p, struct perfdata_clock *clock);
/*
 * The host's name (NUL-terminated, borrowed), or NULL. In a pipe it is known only when its FEATURE
 * record has been read; the same holds for CLOCK_DATA and for attrs.
 */
const char *perfdata_hostname(const struct perfdata *p);

/*
 * Back to the first record; what has been learnt from a pipe stays known. Here, and when
 * perfdata_next() has returned no record, all buffers have been given back: a perfdata that nobody
 * walks through takes some kilobytes.
 */
int perfdata_rewind(struct perfdata *p);
/*
 * The next record in file order. Returns 0, -errno or a code: always the same one from then on,
 * until perfdata_rewind().
 */
int perfdata_next(struct perfdata *p, struct perfdata_record *rec);

/*
 * Each returns 0; PERFDATA_E_CORRUPT when the record is too short for what its attr says, or comes
 * from an event that the file does not describe; -EINVAL for a record of another type.
 */
int perfdata_parse_id(const struct perfdata *p, const struct perfdata_record *rec,
		      struct perfdata_id *id);
int perfdata_parse_mmap(const struct perfdata *p, const struct perfdata_record *rec,
			struct perfdata_mmap *m);
int perfdata_parse_task(const struct perfdata *p, const struct perfdata_record *rec,
			struct perfdata_task *t);
int perfdata_parse_sample(const struct perfdata *p, const struct perfdata_record *rec,
			  struct perfdata_sample *s);

/* -- MMAP2 records as we write them --------------------------------------------------- */

#define PERFDATA_BUILD_ID_SIZE 20u

struct perfdata_edit {
	uint64_t addr, len, pgoff;
	const uint8_t *build_id; /* 20 bytes, or NULL: the inode's bytes become zero */
	const char *name;        /* NULL: as it was. Without build_id usually a path */
	uint32_t pid, tid;
	uint64_t time; /* into the trailer where there is one; pid, tid and id there stay */
};

/*
 * A copy of an MMAP or MMAP2 record with these fields changed, always as MMAP2, protection and
 * flags of an executable private mapping where the source has none. The size stays when the name
 * fits and the source was an MMAP2, else it becomes what is needed. out holds at least
 * PERFDATA_MAX_RECORD bytes. Returns the size, or 0 when no record can hold the name.
 */
#define PERFDATA_MAX_RECORD 65528u
size_t perfdata_edit_mmap(const struct perfdata *p, const struct perfdata_record *rec,
			  const struct perfdata_edit *edit, uint8_t *out);

/* -- writing -------------------------------------------------------------------------- */

/*
 * A new file of the form of p, to fd (empty; a pipe will do for the pipe form and for parts). The
 * header, attrs and ids are copied; for -z input the feature that says so is cleared. Part files
 * of a directory get records only. A file that perf left without a size of its data (it was
 * killed; perf itself would not read it) is finished: it gets the size, and no features.
 * perfdata_error_text() of p has the text of the writer's codes. Returns 0, -errno or a code.
 */
int perfdata_writer_new(struct perfdata_writer **outp, struct perfdata *p, int fd);
void perfdata_writer_free(struct perfdata_writer *w);
/* The record perfdata_next() has just returned, unchanged, with its payload. */
int perfdata_write_record(struct perfdata_writer *w, const struct perfdata_record *rec);
/* A whole record of our own, or one changed. */
int perfdata_write_bytes(struct perfdata_writer *w, const void *bytes, size_t n);
/*
 * Ends the data section, copies the features (their offsets, those of the AUX index and the
 * data size are set anew), flushes. Returns 0, -errno or a code.
 */
int perfdata_writer_finish(struct perfdata_writer *w);

DEFINE_CLEANUP(struct perfdata *, perfdata_free)
DEFINE_CLEANUP(struct perfdata_writer *, perfdata_writer_free)
