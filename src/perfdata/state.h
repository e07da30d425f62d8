/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the files of perfdata share; nobody else includes this. */

#include "perfdata/attrs.h"
#include "perfdata/decompress.h"

#include "perfdata/perfdata.h"

/* Header of the file form: 72 bytes when it was written before there were features. */
#define HEADER_SIZE        104u
#define HEADER_SIZE_OLD    72u
#define HEADER_SIZE_PIPE   16u
#define HEADER_ATTRS       24u
#define HEADER_DATA        40u
#define HEADER_EVENT_TYPES 56u
#define HEADER_FEATURES    72u
#define MAX_FEATURES       256u
#define SECTION_SIZE       16u /* {u64 offset, u64 size} */

#define RECORD_HEADER      8u /* u32 type, u16 misc, u16 size */
#define MAX_KERNEL_TYPE    63u

struct section {
	uint64_t offset, size;
};

enum perfdata_form {
	FORM_FILE,
	FORM_PIPE,
	FORM_PART, /* of a directory: records only */
};

struct failure {
	int code;
	char text[160];
};

/* The one window on the input: bytes [offset, offset + len) of the file. No data outside a walk. */
struct window {
	uint8_t *data;
	uint64_t offset;
	size_t len;
};

struct perfdata {
	int fd;
	enum perfdata_form form;
	uint64_t size;               /* of the file */
	const struct perfdata *main; /* whose attrs hold: this one, or that of the directory */
	struct failure *failure;     /* written by functions that change nothing else */

	/* the walk: reader.c */
	struct window window;
	uint64_t pos;    /* of the next record */
	uint64_t end;    /* of the records */
	uint64_t learnt; /* records before this have been looked into (pipe) */
	bool special;    /* perfdata_next() must look twice: an error, decompressed records */
	int error;       /* perfdata_next() has failed with it */
	struct decoder decoder;

	/* what the file says of itself: header.c */
	uint64_t header_size;
	uint64_t attr_entry;
	struct section attrs_section, data, table;
	bool unfinished; /* perf was killed: no size of the data, no features */
	uint64_t features[MAX_FEATURES / 64];
	struct section sections[MAX_FEATURES]; /* of the features that are set, in order */
	struct section compressed; /* that feature's, if it can be cut out: nothing else is in it */
	struct attrs attrs;
	char *hostname;
	bool has_pair;
	uint64_t wall_ns, clock_ns;
	bool foreign_compression; /* not zstd */
};

/* All n bytes, or PERFDATA_E_TRUNCATED. */
int perfdata_pread(const struct perfdata *p, void *out, size_t n, uint64_t offset);
/* Keeps the text for perfdata_error_text(); returns the code. */
int perfdata_fail(const struct perfdata *p, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Header, attrs and features of a file or pipe. Returns 0, -errno or a code. */
int perfdata_read_header(struct perfdata *p);
bool perfdata_has_feature(const struct perfdata *p, unsigned int feature);
/* The number of features below this one: its place in the table. */
unsigned int perfdata_feature_place(const struct perfdata *p, unsigned int feature);
unsigned int perfdata_n_features(const struct perfdata *p);
/* An attr or a feature that came as a record. Returns 0, -errno or a code. */
int perfdata_learn(struct perfdata *p, const struct perfdata_record *rec);
