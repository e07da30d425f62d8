/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The insides of a recording's way, shared by its files only:
 *
 *   recording.c          scan, clock, images
 *   recording_sources.c  where names come from
 *   recording_io.c       what is read, and what is written
 *   recording_report.c   what is said of it
 */

#include <sys/stat.h>

#include "base/buf.h"
#include "cli/recording.h"
#include "perfdata/buildid.h"

struct part {
	char *name; /* in the directory; NULL: the one file */
	int fd;
	struct perfdata *data;
};

struct recording {
	const struct recording_options *opts;
	struct sources *set;
	struct inject *inj;
	struct part *parts; /* the main one first */
	size_t n_parts;
	int dir_fd; /* of a directory */
	struct stat in_stat;
	struct source **sources; /* by program; NULL: none */
	char **why;              /* why there is none, or less than there should be; NULL */
	bool *quiet;             /* no .NET process at all */
	struct perfdata_clock_track track;
	bool convert;      /* times are known on both clocks */
	uint64_t read_ns;  /* code bytes were read until then */
	uint64_t begin_ns; /* of all this: the recording is over */
	uint64_t until_ns; /* the recording's last moment, CLOCK_MONOTONIC */
	const char *no_times;
	const char *distrust;
	struct buildid_cache *cache;
	struct buf text;
	bool tty;           /* a progress line is shown */
	const char *doing;  /* what it says */
	unsigned int shown; /* percent; 0: no line is there */
};

/* -- recording_io.c --------------------------------------------------------------------- */

/* The input: a file, the parts of a directory, or a pipe, read to its end. Returns 0 or -errno. */
int recording_open(struct recording *rec);
void recording_close(struct recording *rec);
/* Why the output cannot be, or NULL (static). */
const char *recording_bad_output(const struct recording *rec);
/* Everything into the output, or only counted for a dry run. Returns 0; else it has been said. */
int recording_rewrite(struct recording *rec);

/* -- recording_report.c ----------------------------------------------------------------- */

/* A path as people may see it. */
const char *recording_shown(const char *path, bool output);
/* On stderr: path and -errno, which it returns. */
int recording_say(const char *path, int r);
/* The same for a part of the input; r may be a code. Returns -1. */
int recording_say_data(const struct recording *rec, const struct part *part, int r);
/* For inject's options: a line on a terminal; false when a signal says stop. */
bool recording_progress(void *data, uint64_t done, uint64_t size);
void recording_progress_end(struct recording *rec);
/* Managed code and no name for any of it. Says so. */
bool recording_is_hopeless(struct recording *rec);
/* The closing lines. */
void recording_report(struct recording *rec);

/* -- recording_sources.c ---------------------------------------------------------------- */

/* Finds a source for each program that is worth it, and waits until it knows all. 0 or -errno. */
int recording_gather(struct recording *rec);
uint64_t recording_to_map_ns(void *data, uint64_t ns);
