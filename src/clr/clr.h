/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * clr: payloads of the runtime's events to plain structs.
 *
 * One table of layouts, keyed by (provider, event id), covers the method, loader,
 * tiered-compilation and JIT families of Microsoft-Windows-DotNETRuntime and their rundown
 * twins. Each field knows the version that brought it; versions only append (the one exception
 * is in the table), so a version newer than the newest known is read by its known prefix.
 * Layouts: the runtime's ClrEtwAll.man; native events carry no field descriptions.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/reader.h"
#include "base/util.h"

#define CLR_PROVIDER_RUNTIME   "Microsoft-Windows-DotNETRuntime"
#define CLR_PROVIDER_RUNDOWN   "Microsoft-Windows-DotNETRuntimeRundown"
#define CLR_PROVIDER_EVENTPIPE "Microsoft-DotNETCore-EventPipe"

/* Keywords (runtime and rundown providers share these meanings). */
#define CLR_KEYWORD_LOADER                 0x8u
#define CLR_KEYWORD_JIT                    0x10u
#define CLR_KEYWORD_NGEN                   0x20u
#define CLR_KEYWORD_END_ENUMERATION        0x80u
#define CLR_KEYWORD_JIT_TRACING            0x1000u
#define CLR_KEYWORD_IL_MAP                 0x20000u
#define CLR_KEYWORD_COMPILATION            UINT64_C(0x1000000000)
#define CLR_KEYWORD_COMPILATION_DIAGNOSTIC UINT64_C(0x2000000000)
#define CLR_KEYWORD_METHOD_DIAGNOSTIC      UINT64_C(0x4000000000)

/* MethodFlags */
#define CLR_METHOD_DYNAMIC      0x1u
#define CLR_METHOD_GENERIC      0x2u
#define CLR_METHOD_SHARED       0x4u
#define CLR_METHOD_JITTED       0x8u
#define CLR_METHOD_JIT_HELPER   0x10u
#define CLR_METHOD_TIER_SHIFT   7
#define CLR_METHOD_TIER_MASK    0x7u
#define CLR_METHOD_EXTENT_SHIFT 28

/* Special IL offsets of an IL map */
#define CLR_IL_NO_MAPPING 0xffffffffu
#define CLR_IL_PROLOG     0xfffffffeu
#define CLR_IL_EPILOG     0xfffffffdu

/* What an event means to us; several (provider, id) pairs may share one kind. */
enum clr_kind {
	CLR_IGNORED,               /* known, nothing to tell (or of another provider) */
	CLR_METHOD_LOAD,           /* 141, 143 */
	CLR_METHOD_UNLOAD,         /* 142, 144 */
	CLR_METHOD_RUNDOWN,        /* rundown 141-144: alive at that time */
	CLR_METHOD_JIT_STARTED,    /* 145 */
	CLR_METHOD_JIT_MEMORY,     /* 146 */
	CLR_METHOD_DETAILS,        /* 72 */
	CLR_METHOD_INLINING,       /* 185 succeeded, 186 and 192 failed */
	CLR_METHOD_TAIL_CALL,      /* 188 succeeded, 189 and 191 failed */
	CLR_R2R_ENTRY_POINT,       /* 159 */
	CLR_R2R_ENTRY_POINT_START, /* 160 */
	CLR_IL_MAP,                /* 190; rundown 149, 150 */
	CLR_DOMAIN_MODULE,         /* 151; rundown 151, 152 */
	CLR_MODULE,                /* 152 load, 153 unload; rundown 153, 154 */
	CLR_ASSEMBLY,              /* 154 load, 155 unload; rundown 155, 156 */
	CLR_APP_DOMAIN,            /* 156 load, 157 unload; rundown 157, 158 */
	CLR_MODULE_RANGE,          /* 158; rundown 160, 161 */
	CLR_THREAD,                /* rundown 159 */
	CLR_RUNTIME_INFO,          /* 187 */
	CLR_TIERED_SETTINGS,       /* 280 */
	CLR_TIERED_PAUSE,          /* 281 */
	CLR_TIERED_RESUME,         /* 282 */
	CLR_TIERED_JIT_START,      /* 283 */
	CLR_TIERED_JIT_STOP,       /* 284 */
	CLR_RUNDOWN_MARK,          /* rundown 145-148: start/end, init/complete */
	CLR_GC_SETTINGS,           /* rundown 10 */
	CLR_CHECKPOINT,            /* rundown 300 */
	CLR_PROCESS_INFO,          /* Microsoft-DotNETCore-EventPipe 1 */
};

/*
 * UTF-8, valid, NUL-terminated and never NULL (absent strings are empty); borrowed from
 * the decoder until its next event.
 */
struct clr_string {
	const char *s;
	uint32_t len;
};

struct clr_guid {
	uint8_t bytes[16]; /* as on the wire: 32, 16, 16 bits little-endian, then 8 bytes */
};

struct clr_method {
	uint64_t method_id, module_id, start;
	uint64_t version; /* native code version id ("ReJITID" of V2); 0 in V1 */
	uint32_t size, token, flags;
	bool verbose; /* the three strings are there */
	struct clr_string ns, name, sig;
};

struct clr_il_map {
	uint64_t method_id;
	uint64_t version;    /* native code version id; always 0 on 3.1, see adjacent */
	uint64_t il_version; /* V1 only */
	uint8_t extent;
	uint16_t n;
	const uint8_t *il_offsets;     /* n little-endian u32, borrowed from the payload */
	const uint8_t *native_offsets; /* n little-endian u32, from the hot start */
	bool adjacent; /* V0 (3.1): belongs to the method event beside it on its thread */
};

struct clr_jit_started {
	uint64_t method_id, module_id;
	uint32_t token, il_size;
	struct clr_string ns, name, sig;
};

struct clr_jit_memory {
	uint64_t method_id, module_id, hot_size, rodata_size, allocated_size;
	uint32_t flag;
};

struct clr_method_details {
	uint64_t method_id, type_id, loader_module_id;
	uint32_t token, n_type_params;
	const uint8_t *type_params; /* n little-endian u64, borrowed */
};

/* Three methods (being compiled, inliner or caller, inlinee or callee). */
struct clr_jit_tracing {
	struct clr_string ns[3], name[3], sig[3];
	bool failed;
	bool fail_always;         /* inlining */
	bool tail_prefix;         /* tail calls */
	uint32_t tail_call_type;  /* 0 optimized, 1 recursive loop, 2 through a helper */
	struct clr_string reason; /* when failed */
};

struct clr_r2r_entry_point {
	uint64_t method_id, entry_point;
	struct clr_string ns, name, sig;
};

struct clr_module {
	uint64_t module_id, assembly_id;
	uint64_t app_domain_id; /* domain module only */
	uint32_t flags;
	struct clr_string il_path, native_path;
	struct clr_guid pdb_guid, native_pdb_guid;
	uint32_t pdb_age, native_pdb_age;
	struct clr_string pdb_path, native_pdb_path;
	struct clr_string native_build_id; /* V3 */
};

/* AssemblyFlags */
#define CLR_ASSEMBLY_COLLECTIBLE 0x8u

struct clr_assembly {
	uint64_t assembly_id, app_domain_id, binding_id;
	uint32_t flags;
	struct clr_string name;
};

struct clr_app_domain {
	uint64_t app_domain_id;
	uint32_t flags, index;
	struct clr_string name;
};

struct clr_module_range {
	uint64_t module_id;
	uint32_t begin, size;
	uint8_t type;
};

struct clr_thread {
	uint64_t managed_id, app_domain_id;
	uint32_t flags, index, os_id;
};

struct clr_runtime_info {
	uint16_t sku;
	uint16_t bcl[4], vm[4];
	uint32_t startup_flags;
	uint8_t startup_mode;
	struct clr_string command_line;
	struct clr_guid com_guid;
	struct clr_string dll_path;
};

/* 280-284: the fields that the event has, others 0. */
struct clr_tiered {
	uint32_t flags;
	uint32_t new_methods, pending_methods, jitted_methods;
};

struct clr_gc_settings {
	uint64_t hard_limit, loh_threshold, physical_memory, gen0_min_budget, gen0_max_budget;
	uint32_t high_memory_percent, flags;
};

struct clr_checkpoint {
	struct clr_string name;
	uint64_t timestamp;
};

struct clr_process_info {
	struct clr_string command_line, os, arch;
};

enum clr_phase {
	CLR_PHASE_LOAD, /* load, or an event that is neither load nor unload */
	CLR_PHASE_UNLOAD,
	CLR_PHASE_START, /* rundown DCStart */
	CLR_PHASE_END,   /* rundown DCEnd */
};

struct clr_event {
	enum clr_kind kind;
	enum clr_phase phase;
	bool rundown;         /* of the rundown provider */
	uint32_t id, version; /* as on the wire */
	uint16_t clr_instance;
	union {
		struct clr_method method;
		struct clr_il_map il_map;
		struct clr_jit_started jit_started;
		struct clr_jit_memory jit_memory;
		struct clr_method_details details;
		struct clr_jit_tracing tracing;
		struct clr_r2r_entry_point entry_point;
		struct clr_module module;
		struct clr_assembly assembly;
		struct clr_app_domain app_domain;
		struct clr_module_range range;
		struct clr_thread thread;
		struct clr_runtime_info runtime;
		struct clr_tiered tiered;
		struct clr_gc_settings gc;
		struct clr_checkpoint checkpoint;
		struct clr_process_info process;
	};
};

enum clr_error {
	CLR_E_UNKNOWN = 1, /* no layout for it: count and go on */
	CLR_E_SHORT,       /* the payload ends before the known fields: count and go on */
};

struct clr_layout;

/*
 * The layout of an event, or NULL if it is none of ours. To be kept beside the metadata
 * record: lookups are per kind, not per event.
 */
const struct clr_layout *clr_layout_find(const char *provider, uint32_t event_id);
enum clr_kind clr_layout_kind(const struct clr_layout *layout);
/* The name that TraceEvent has for it, e.g. "Method/LoadVerbose". */
const char *clr_layout_name(const struct clr_layout *layout);

/* Scratch space for the strings of one event at a time. */
struct clr_decoder {
	struct buf text;
};

void clr_decoder_init(struct clr_decoder *d);
void clr_decoder_deinit(struct clr_decoder *d);

/*
 * Decodes one payload. *event borrows from payload and decoder until the next call.
 * Returns 0, -ENOMEM, CLR_E_UNKNOWN (layout NULL) or CLR_E_SHORT; *event is only meaningful
 * after 0.
 */
int clr_decode(struct clr_decoder *d, const struct clr_layout *layout, uint32_t version,
	       const uint8_t *payload, size_t size, struct clr_event *event);

/* -- Spellings of values, as TraceEvent has them --------------------------------------- */

/* For people and for lines that are compared with the peer's; nothing should parse them. */
struct clr_text {
	char s[384];
};

enum clr_flag_set {
	CLR_FLAGS_MODULE,
	CLR_FLAGS_ASSEMBLY,
	CLR_FLAGS_APP_DOMAIN,
	CLR_FLAGS_STARTUP,
	CLR_FLAGS_STARTUP_MODE,
	CLR_FLAGS_SKU,
	CLR_FLAGS_TIERED_SETTINGS,
	CLR_FLAGS_THREAD,
};

/*
 * The names of the bits, joined by ", "; "None" for 0; the whole value in decimal (signed, but
 * for the tiered settings) if any bit has no name. Returns text->s.
 */
const char *clr_flags_text(struct clr_text *text, enum clr_flag_set set, uint32_t value);
const char *clr_tail_call_text(struct clr_text *text, uint32_t tail_call_type);
/* The tier in MethodFlags; "Unknown" for code that was not jitted. */
const char *clr_tier_text(uint32_t method_flags);
const char *clr_guid_text(struct clr_text *text, const struct clr_guid *guid);
