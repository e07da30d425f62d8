/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Every cap and default of the program, each with its reason.
 *
 * Nothing that grows from outside bytes may exist without a cap from this page.
 */

#include <stdint.h>

#define KIB(n)    ((uint64_t)(n) << 10)
#define MIB(n)    ((uint64_t)(n) << 20)
#define GIB(n)    ((uint64_t)(n) << 30)
#define MS_NS(n)  ((uint64_t)(n)*1000000u)
#define SEC_NS(n) ((uint64_t)(n)*1000000000u)

/* -- Diagnostic IPC ------------------------------------------------------------------ */

/* The size field of a message is 16 bits wide. */
#define CAP_IPC_MESSAGE 65535u
/* Connect, request and reply of one command: a healthy runtime answers in milliseconds. */
#define DEFAULT_IPC_DEADLINE_NS SEC_NS(5)
/* From the rundown's StopTracing to its end tag; 100,000 methods take under 1 s. */
#define DEFAULT_RUNDOWN_DEADLINE_NS SEC_NS(60)
/* All targets together, after SIGTERM. */
#define DEFAULT_STOP_DEADLINE_NS SEC_NS(5)

/* -- Buffers asked of the runtime ----------------------------------------------------- */

/* The whole rundown sits in this buffer (of the target's memory) until it is over. */
#define DEFAULT_BUFFER_MB 64u
/* The one retry after an incomplete rundown asks for this at the most. */
#define CAP_BUFFER_MB 1024u
/* With less room than this below the target's memory limit there is no rundown. */
#define FLOOR_RUNDOWN_MB 16u
/* The share of the room below the target's memory limit that a buffer may take: 1/n. */
#define BUFFER_ROOM_SHARE 4u

/* -- Draining ------------------------------------------------------------------------- */

/* Bytes read but not yet decoded: past this the reader decodes before it reads on. */
#define CAP_BACKLOG_TARGET MIB(32)
#define CAP_BACKLOG_TOTAL  MIB(256)
/* One read from a target's stream; as large as the kernel's default socket buffer. */
#define READ_CHUNK KIB(256)
/* Decoding, formatting and the like give way to the sockets after this long. */
#define SLICE_NS MS_NS(5)

/* -- nettrace ------------------------------------------------------------------------- */

/* Runtimes write blocks of 100 KiB plus a header; one event may make it a little more. */
#define CAP_BLOCK_BYTES MIB(16)
/* Type names are at most "MetadataBlock". */
#define CAP_OBJECT_NAME 256u
/* Threads whose sequence numbers are followed; idle ones go first (see nettrace). */
#define CAP_THREADS 65536u
/* Native providers define some hundred events; an EventSource may add more. */
#define CAP_METADATA_IDS 4096u
/* ETW provider names are some tens of characters; an EventSource may choose its own. */
#define CAP_PROVIDER_NAME 1024u

/* -- Code map ------------------------------------------------------------------------- */

/* No JIT makes a method of this size; a larger one is a lie and would cost many segments. */
#define CAP_BODY_BYTES MIB(64)
/* Live and retired code bodies of one target. */
#define CAP_BODIES 8000000u
/* Distinct name text of one target. */
#define CAP_NAME_BYTES GIB(1)
/* One namespace, name or signature: the runtime drops events above 64 KiB. */
#define CAP_NAME_LENGTH 65535u
/* IL maps of one target, as stored. */
#define CAP_IL_BYTES MIB(256)
/* The runtime's own limit on the entries of one IL map. */
#define CAP_IL_ENTRIES 7000u
/* IL maps whose body has not been announced yet. */
#define CAP_IL_PENDING 4096u
/* Unloads that overtook their load on another thread's buffer. */
#define CAP_UNLOADS_PENDING 1024u
#define CAP_MODULES         262144u
/* Spans with lost events that are remembered one by one; older ones are joined. */
#define CAP_GAPS 64u
/* Retired bodies: long enough for a profile that is resolved at its end. */
#define DEFAULT_RETIRED_NS    SEC_NS(15 * 60)
#define DEFAULT_RETIRED_BYTES MIB(16)

/* -- Code bytes ----------------------------------------------------------------------- */

/* Kept of one target, records included: far above what a large server has compiled. */
#define CAP_CODE_BYTES MIB(32)
/* One body: a longer one would take too much of it, and too long to read. */
#define CAP_CODE_BODY MIB(4)
/* Bodies that wait to be read: some seconds of the fastest start-up. */
#define CAP_CODE_PENDING 65536u

/* -- Trust in time -------------------------------------------------------------------- */

/* Events arrive up to 110 ms late from a healthy target; see target's known_until. */
#define FLOOR_DELAY_NS MS_NS(250)

/* -- Rundowns ------------------------------------------------------------------------- */

/* The first re-rundown may follow a gap at once; then this long apart, doubling. */
#define DEFAULT_RERUNDOWN_GAP_NS SEC_NS(60)
#define CAP_RERUNDOWN_GAP_NS     SEC_NS(3600)
/* Rundowns at once on the machine. */
#define CAP_RUNDOWNS 4u

/* -- Perf map ------------------------------------------------------------------------- */

#define DEFAULT_MAP_BYTES MIB(64)
/* ddprof cuts names at 300 bytes; perf drops names of one or two characters. */
#define CAP_MAP_NAME   300u
#define FLOOR_MAP_NAME 3u
/* A rewrite no sooner than this after the last, or than the map's size at this rate. */
#define DEFAULT_MAP_INTERVAL_NS   SEC_NS(1)
#define DEFAULT_MAP_BYTES_PER_SEC MIB(1)

/* After the target's exit: its answers, and its map files. */
#define DEFAULT_EXIT_ANSWERS_NS SEC_NS(10 * 60)
#define DEFAULT_EXIT_MAP_NS     SEC_NS(60)

/* -- /proc ---------------------------------------------------------------------------- */

#define CAP_PROC_FILE MIB(4)
#define CAP_ENVIRON   MIB(2)
/* Entries read from a target's TMPDIR while looking for its socket. */
#define CAP_TMPDIR_ENTRIES 100000u
/* A target may hold a million open files; its own perf map is among the first. */
#define CAP_PROC_FDS 65536u
/* Threads that are looked at; a process with more is busy. */
#define CAP_PROC_TASKS 512u
/* All lines of /proc/PID/maps: 65,530 mappings (vm.max_map_count), paths of 4 KiB at worst. */
#define CAP_MAPS_BYTES MIB(64)
/* Listening sockets of the target's number that are tried when its start time fits none. */
#define CAP_SOCKET_TRIES 16u
/* Levels of cgroups; the kernel's own default limit on depth is INT_MAX. */
#define CAP_CGROUP_DEPTH 64u
/* A target that keeps renaming directories makes openat2 say "again": so often, then no more. */
#define CAP_OPENAT2_TRIES 16u

/* -- inject --------------------------------------------------------------------------- */

/* Pages of code that a recording hits (16 GB of code): past this, everything counts as hit. */
#define CAP_INJECT_PAGES 4194304u
/* Records of mappings, forks, execs and exits of one recording. */
#define CAP_INJECT_EVENTS 4194304u
/* Of one program. Records to be inserted: some for each body that was hit. */
#define CAP_INJECT_INSERTS 1048576u
/* Pieces of runtime memory: the kernel itself allows 65,530 mappings. */
#define CAP_INJECT_PIECES 65536u
/* Files with precompiled code, and so images, of one recording. */
#define CAP_INJECT_IMAGES 4096u
/* From the first to the last method of a file whose image has code bytes. */
#define CAP_FILE_TEXT MIB(64)
/* Distinct names of mappings: text. */
#define CAP_INJECT_NAME_BYTES MIB(64)
/* Retired bodies of one target while a recording is under way. */
#define CAP_RECORDING_RETIRED GIB(1)
/* Code of one image, and its .text in the file: far above the largest composite framework. */
#define CAP_IMAGE_BYTES MIB(512)

/* -- perf.data ------------------------------------------------------------------------ */

/* One piece of input or output: calls cost nothing any more, and a record fits (64 KiB). */
#define PERF_WINDOW KIB(256)
/* Events of one recording: all tracepoints of a kernel are some 2,500. */
#define CAP_PERF_ATTRS 16384u
/* The kernel itself refuses attrs of more than a page; they have 136 bytes today. */
#define CAP_PERF_ATTR_BYTES 4096u
/* One id for each event on each CPU: 100 events on 10,000 CPUs. As read, duplicates included. */
#define CAP_PERF_IDS 1048576u
/* Host names have up to 64 bytes on Linux; perf pads them. */
#define CAP_PERF_HOSTNAME 1024u
/* The window of zstd, 2^n bytes: what the highest level of `perf record -z` (22) asks for. */
#define CAP_PERF_ZSTD_WINDOW_LOG 27
/* AUX records that have moved by different distances, 16 bytes each. */
#define CAP_PERF_AUX_MOVES 4194304u
/* A name in an image. Nobody reads more, and long ones of many bodies make files of 100 MB. */
#define CAP_SYMBOL_NAME 4096u

/* -- Query socket --------------------------------------------------------------------- */

/* One request: 16,384 addresses with a time each, in decimal. Parsing it takes 5 ms. */
#define CAP_QUERY_REQUEST MIB(1)
/* Numbers, strings and members of one request; each may take 100 bytes while it is parsed. */
#define CAP_QUERY_VALUES 40000u
/* Arrays and objects in it: as many stacks. */
#define CAP_QUERY_CONTAINERS 17000u
/* stacks: object, array, array; the rest is room for clients that wrap. */
#define CAP_QUERY_DEPTH 16u
/* Addresses of one Resolve. */
#define CAP_QUERY_ADDRESSES 16384u
/* What a client takes from a server: a reply with 16,384 methods, names of 30 KB at worst. */
#define CAP_QUERY_REPLY        MIB(512)
#define CAP_QUERY_REPLY_VALUES 16777216u
/* What one reply of the server may take; past this the answer is Busy. */
#define CAP_QUERY_OUT MIB(64)
/* All clients' requests and replies together, and those of one user (root: all). */
#define CAP_QUERY_MEMORY      MIB(192)
#define CAP_QUERY_USER_MEMORY MIB(96)
/* Connections, and those of one user; root can always have some. */
#define CAP_QUERY_CLIENTS      4096u
#define CAP_QUERY_USER_CLIENTS 2048u
#define CAP_QUERY_ROOT_CLIENTS 64u
/* Requests that wait on one connection before no more is read from it. */
#define CAP_QUERY_AHEAD KIB(64)
/* Held replies wait no longer. */
#define CAP_QUERY_WAIT_MS        500u
#define CAP_QUERY_EXPORT_WAIT_MS 10000u
#define CAP_QUERY_ATTACH_WAIT_MS 60000u
/* A client that does not take its reply, or leaves a request half sent, for so long is dropped. */
#define CAP_QUERY_STALL_NS SEC_NS(10)
/* Processes that one user may have attached beside what the daemon was told to. */
#define CAP_QUERY_USER_ATTACHES 64u
/* The same, and those that have exited and still answer. */
#define CAP_QUERY_USER_ENTRIES 256u
/* Monitors that one user may have of one process: each change is written for each of them. */
#define CAP_QUERY_USER_MONITORS 64u
/* The share of the daemon's time that one user but root may have: ns in each ns, in percent. */
#define CAP_QUERY_USER_SHARE 50u
/* A user may save up so much of it. */
#define CAP_QUERY_USER_BURST_NS MS_NS(500)
/* Methods of one reply of ListMethods with `more`. */
#define CAP_QUERY_CHUNK 512u
/* Bodies looked through, changes published and the like before sockets are looked at again. */
#define QUERY_SLICE_BODIES 2048u
/* Of one process: a body takes some 300 bytes in it, with its name. */
#define CAP_EXPORT_BYTES GIB(4)
/* Exports under way: each holds a record a body, and a file. */
#define CAP_QUERY_EXPORTS 16u
/* A snapshot without readers is kept for so long. */
#define DEFAULT_SNAPSHOT_IDLE_NS SEC_NS(60)
/* Retired bodies of 2 KiB of code in a snapshot; the daemon knows of the others. */
#define CAP_SNAPSHOT_RETIRED 64u

/* -- Loader --------------------------------------------------------------------------- */

/* Domains, assemblies and modules that are loaded, and of those unloaded the newest. */
#define CAP_LOADER_ITEMS 262144u
#define CAP_LOADER_GONE  4096u
#define CAP_LOADER_BYTES MIB(64)

/* -- Places --------------------------------------------------------------------------- */

/* Mappings are read for a question no sooner than this after the last time. */
#define PLACE_REFRESH_NS MS_NS(200)
