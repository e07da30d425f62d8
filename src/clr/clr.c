/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clr: payloads to structs.
 *
 * A layout is a list of fields in wire order; decoding walks the list with a bounded
 * reader and stores each field where the list says. Only what the walk cannot express (arrays)
 * or should not pay for (the three events that make up nearly all of a rundown) has a function
 * of its own.
 *
 * Strings are converted as they are met, one behind the other into the decoder's scratch. It is
 * reserved once an event, for the worst case, so the loop neither allocates nor checks for room.
 * A string without its terminator makes the payload short: the runtime writes none, so there is
 * no telling what such bytes are.
 */
#include "clr/clr.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/utf.h"

enum provider {
	RUNTIME,
	RUNDOWN,
	EVENTPIPE,
};

static const char *const provider_names[] = {
	[RUNTIME] = CLR_PROVIDER_RUNTIME,
	[RUNDOWN] = CLR_PROVIDER_RUNDOWN,
	[EVENTPIPE] = CLR_PROVIDER_EVENTPIPE,
};

/* A payload on its way into an event. */
struct decoding {
	struct reader in;
	char *out; /* where the next string goes */
	uint32_t version;
	struct clr_event *event;
};

enum field_type {
	FIELD_END,
	FIELD_U8,
	FIELD_U16,
	FIELD_U32,
	FIELD_U64,
	FIELD_BOOL, /* 32 bits wide */
	FIELD_GUID,
	FIELD_STRING,   /* 16-bit units, zero-terminated */
	FIELD_CHARS,    /* 8-bit units, zero-terminated */
	FIELD_RESERVED, /* 32 bits that say nothing */
	/* not on the wire: what else is to be told of such an event */
	FIELD_TRUE,
	FIELD_EMPTY, /* a string that this kind has and this event lacks */
};

struct field {
	uint8_t type;
	uint8_t since; /* the version that brought it */
	uint16_t offset;
};

struct clr_layout {
	enum provider provider;
	uint16_t id;
	enum clr_kind kind;
	enum clr_phase phase;
	const char *name;
	void (*decode)(struct decoding *d, const struct clr_layout *layout);
	const struct field *fields;
};

/* -- Strings -------------------------------------------------------------------------- */

static const struct clr_string no_string = { .s = "" };

static inline void decode_string(struct decoding *d, struct clr_string *string)
{
	size_t n_units = reader_left(&d->in) / 2, n_used;
	ptrdiff_t n = utf8_from_u16z(d->out, d->in.p, n_units, &n_used);

	if (unlikely(n < 0)) {
		d->in.bad = true;
		d->in.p = d->in.end;
		*string = no_string;
		return;
	}
	string->s = d->out;
	string->len = (uint32_t)n;
	d->out[n] = '\0';
	d->out += n + 1;
	d->in.p += 2 * n_used;
}

/* Bytes past ASCII are not known to occur; as Latin-1 they stay valid and tell what they were. */
static void decode_chars(struct decoding *d, struct clr_string *string)
{
	uint8_t c;

	string->s = d->out;
	while ((c = reader_u8(&d->in))) {
		if (c < 0x80) {
			*d->out++ = (char)c;
		} else {
			*d->out++ = (char)(0xc0 | c >> 6);
			*d->out++ = (char)(0x80 | (c & 0x3f));
		}
	}
	string->len = (uint32_t)(d->out - string->s);
	*d->out++ = '\0';
}

/* A unit of two bytes gives up to three, one of one byte up to two. */
#define TEXT_PER_BYTE 2
#define TEXT_SLACK    (UTF_SLACK + 1)

/* -- Decoding by list ----------------------------------------------------------------- */

/* The event is all zeros, so a field that its version lacks can be passed over. */
static void decode_field(struct decoding *d, const struct field *field)
{
	void *to = (char *)d->event + field->offset;
	const uint8_t *bytes;

	if (field->since > d->version) {
		if (field->type == FIELD_STRING)
			*(struct clr_string *)to = no_string;
		return;
	}
	switch ((enum field_type)field->type) {
	case FIELD_U8: *(uint8_t *)to = reader_u8(&d->in); break;
	case FIELD_U16: *(uint16_t *)to = reader_u16(&d->in); break;
	case FIELD_U32: *(uint32_t *)to = reader_u32(&d->in); break;
	case FIELD_U64: *(uint64_t *)to = reader_u64(&d->in); break;
	case FIELD_BOOL: *(bool *)to = reader_u32(&d->in); break;
	case FIELD_GUID:
		bytes = reader_bytes(&d->in, sizeof(struct clr_guid));
		if (bytes)
			memcpy(to, bytes, sizeof(struct clr_guid));
		break;
	case FIELD_STRING: decode_string(d, to); break;
	case FIELD_CHARS: decode_chars(d, to); break;
	case FIELD_RESERVED: reader_skip(&d->in, 4); break;
	case FIELD_TRUE: *(bool *)to = true; break;
	case FIELD_EMPTY: *(struct clr_string *)to = no_string; break;
	case FIELD_END: break;
	}
}

static void decode_fields(struct decoding *d, const struct clr_layout *layout)
{
	const struct field *field;

	for (field = layout->fields; field->type != FIELD_END; field++)
		decode_field(d, field);
}

#define FIELD_SINCE(version, type, member) \
	{ \
		FIELD_##type, version, offsetof(struct clr_event, member) \
	}
#define FIELD(type, member) FIELD_SINCE(0, type, member)
#define RESERVED \
	{ \
		FIELD_RESERVED, 0, 0 \
	}
#define END \
	{ \
		FIELD_END, 0, 0 \
	}

static const struct field instance_only[] = { FIELD(U16, clr_instance), END };

static const struct field jit_started[] = {
	FIELD(U64, jit_started.method_id),
	FIELD(U64, jit_started.module_id),
	FIELD(U32, jit_started.token),
	FIELD(U32, jit_started.il_size),
	FIELD(STRING, jit_started.ns),
	FIELD(STRING, jit_started.name),
	FIELD(STRING, jit_started.sig),
	FIELD_SINCE(1, U16, clr_instance),
	END,
};

static const struct field jit_memory[] = {
	FIELD(U64, jit_memory.method_id),
	FIELD(U64, jit_memory.module_id),
	FIELD(U64, jit_memory.hot_size),
	FIELD(U64, jit_memory.rodata_size),
	FIELD(U64, jit_memory.allocated_size),
	FIELD(U32, jit_memory.flag),
	FIELD(U16, clr_instance),
	END,
};

#define TRACING_METHOD(i) \
	FIELD(STRING, tracing.ns[i]), FIELD(STRING, tracing.name[i]), FIELD(STRING, tracing.sig[i])
#define TRACING_METHODS TRACING_METHOD(0), TRACING_METHOD(1), TRACING_METHOD(2)

static const struct field inlining_succeeded[] = {
	TRACING_METHODS,
	FIELD(EMPTY, tracing.reason),
	FIELD(U16, clr_instance),
	END,
};

static const struct field inlining_failed[] = {
	FIELD(TRUE, tracing.failed),   TRACING_METHODS,          FIELD(BOOL, tracing.fail_always),
	FIELD(STRING, tracing.reason), FIELD(U16, clr_instance), END,
};

static const struct field inlining_failed_chars[] = {
	FIELD(TRUE, tracing.failed),  TRACING_METHODS,          FIELD(BOOL, tracing.fail_always),
	FIELD(CHARS, tracing.reason), FIELD(U16, clr_instance), END,
};

static const struct field tail_call_succeeded[] = {
	TRACING_METHODS,
	FIELD(BOOL, tracing.tail_prefix),
	FIELD(U32, tracing.tail_call_type),
	FIELD(EMPTY, tracing.reason),
	FIELD(U16, clr_instance),
	END,
};

static const struct field tail_call_failed[] = {
	FIELD(TRUE, tracing.failed),   TRACING_METHODS,          FIELD(BOOL, tracing.tail_prefix),
	FIELD(STRING, tracing.reason), FIELD(U16, clr_instance), END,
};

static const struct field tail_call_failed_chars[] = {
	FIELD(TRUE, tracing.failed),  TRACING_METHODS,          FIELD(BOOL, tracing.tail_prefix),
	FIELD(CHARS, tracing.reason), FIELD(U16, clr_instance), END,
};

static const struct field entry_point[] = {
	FIELD(U64, entry_point.method_id),
	FIELD(STRING, entry_point.ns),
	FIELD(STRING, entry_point.name),
	FIELD(STRING, entry_point.sig),
	FIELD(U64, entry_point.entry_point),
	FIELD(U16, clr_instance),
	END,
};

static const struct field entry_point_start[] = {
	FIELD(U64, entry_point.method_id), FIELD(EMPTY, entry_point.ns),
	FIELD(EMPTY, entry_point.name),    FIELD(EMPTY, entry_point.sig),
	FIELD(U16, clr_instance),          END,
};

static const struct field domain_module[] = {
	FIELD(U64, module.module_id),
	FIELD(U64, module.assembly_id),
	FIELD(U64, module.app_domain_id),
	FIELD(U32, module.flags),
	RESERVED,
	FIELD(STRING, module.il_path),
	FIELD(STRING, module.native_path),
	FIELD_SINCE(1, U16, clr_instance),
	FIELD(EMPTY, module.pdb_path),
	FIELD(EMPTY, module.native_pdb_path),
	FIELD(EMPTY, module.native_build_id),
	END,
};

static const struct field module[] = {
	FIELD(U64, module.module_id),
	FIELD(U64, module.assembly_id),
	FIELD(U32, module.flags),
	RESERVED,
	FIELD(STRING, module.il_path),
	FIELD(STRING, module.native_path),
	FIELD_SINCE(1, U16, clr_instance),
	FIELD_SINCE(2, GUID, module.pdb_guid),
	FIELD_SINCE(2, U32, module.pdb_age),
	FIELD_SINCE(2, STRING, module.pdb_path),
	FIELD_SINCE(2, GUID, module.native_pdb_guid),
	FIELD_SINCE(2, U32, module.native_pdb_age),
	FIELD_SINCE(2, STRING, module.native_pdb_path),
	FIELD_SINCE(3, STRING, module.native_build_id),
	END,
};

static const struct field assembly[] = {
	FIELD(U64, assembly.assembly_id),
	FIELD(U64, assembly.app_domain_id),
	FIELD_SINCE(1, U64, assembly.binding_id), /* the one field that came in the middle */
	FIELD(U32, assembly.flags),
	FIELD(STRING, assembly.name),
	FIELD_SINCE(1, U16, clr_instance),
	END,
};

static const struct field app_domain[] = {
	FIELD(U64, app_domain.app_domain_id), FIELD(U32, app_domain.flags),
	FIELD(STRING, app_domain.name),       FIELD_SINCE(1, U32, app_domain.index),
	FIELD_SINCE(1, U16, clr_instance),    END,
};

static const struct field module_range[] = {
	FIELD(U16, clr_instance), FIELD(U64, range.module_id), FIELD(U32, range.begin),
	FIELD(U32, range.size),   FIELD(U8, range.type),       END,
};

static const struct field thread[] = {
	FIELD(U64, thread.managed_id),
	FIELD(U64, thread.app_domain_id),
	FIELD(U32, thread.flags),
	FIELD(U32, thread.index),
	FIELD(U32, thread.os_id),
	FIELD(U16, clr_instance),
	END,
};

static const struct field runtime_info[] = {
	FIELD(U16, clr_instance),
	FIELD(U16, runtime.sku),
	FIELD(U16, runtime.bcl[0]),
	FIELD(U16, runtime.bcl[1]),
	FIELD(U16, runtime.bcl[2]),
	FIELD(U16, runtime.bcl[3]),
	FIELD(U16, runtime.vm[0]),
	FIELD(U16, runtime.vm[1]),
	FIELD(U16, runtime.vm[2]),
	FIELD(U16, runtime.vm[3]),
	FIELD(U32, runtime.startup_flags),
	FIELD(U8, runtime.startup_mode),
	FIELD(STRING, runtime.command_line),
	FIELD(GUID, runtime.com_guid),
	FIELD(STRING, runtime.dll_path),
	END,
};

static const struct field tiered_settings[] = {
	FIELD(U16, clr_instance),
	FIELD(U32, tiered.flags),
	END,
};

static const struct field tiered_resume[] = {
	FIELD(U16, clr_instance),
	FIELD(U32, tiered.new_methods),
	END,
};

static const struct field tiered_jit_start[] = {
	FIELD(U16, clr_instance),
	FIELD(U32, tiered.pending_methods),
	END,
};

static const struct field tiered_jit_stop[] = {
	FIELD(U16, clr_instance),
	FIELD(U32, tiered.pending_methods),
	FIELD(U32, tiered.jitted_methods),
	END,
};

static const struct field gc_settings[] = {
	FIELD(U64, gc.hard_limit),
	FIELD(U64, gc.loh_threshold),
	FIELD(U64, gc.physical_memory),
	FIELD(U64, gc.gen0_min_budget),
	FIELD(U64, gc.gen0_max_budget),
	FIELD(U32, gc.high_memory_percent),
	FIELD(U32, gc.flags),
	FIELD(U16, clr_instance),
	END,
};

static const struct field checkpoint[] = {
	FIELD(U16, clr_instance),
	FIELD(STRING, checkpoint.name),
	FIELD(U64, checkpoint.timestamp),
	END,
};

static const struct field process_info[] = {
	FIELD(STRING, process.command_line),
	FIELD_SINCE(1, STRING, process.os),
	FIELD_SINCE(1, STRING, process.arch),
	END,
};

/* -- Decoding by hand ----------------------------------------------------------------- */

static inline void decode_method_head(struct decoding *d)
{
	struct clr_method *method = &d->event->method;

	method->method_id = reader_u64(&d->in);
	method->module_id = reader_u64(&d->in);
	method->start = reader_u64(&d->in);
	method->size = reader_u32(&d->in);
	method->token = reader_u32(&d->in);
	method->flags = reader_u32(&d->in);
}

static inline void decode_method_tail(struct decoding *d)
{
	if (d->version >= 1)
		d->event->clr_instance = reader_u16(&d->in);
	d->event->method.version = d->version >= 2 ? reader_u64(&d->in) : 0;
}

static void decode_method(struct decoding *d, const struct clr_layout *layout UNUSED)
{
	struct clr_method *method = &d->event->method;

	decode_method_head(d);
	method->verbose = false;
	method->ns = method->name = method->sig = no_string;
	decode_method_tail(d);
}

static void decode_method_verbose(struct decoding *d, const struct clr_layout *layout UNUSED)
{
	struct clr_method *method = &d->event->method;

	decode_method_head(d);
	method->verbose = true;
	decode_string(d, &method->ns);
	decode_string(d, &method->name);
	decode_string(d, &method->sig);
	decode_method_tail(d);
}

static void decode_il_map(struct decoding *d, const struct clr_layout *layout UNUSED)
{
	struct clr_il_map *map = &d->event->il_map;

	map->method_id = reader_u64(&d->in);
	map->version = reader_u64(&d->in);
	map->extent = reader_u8(&d->in);
	map->n = reader_u16(&d->in);
	if (map->n > CAP_IL_ENTRIES)
		d->in.bad = true;
	map->il_offsets = reader_bytes(&d->in, 4 * (size_t)map->n);
	map->native_offsets = reader_bytes(&d->in, 4 * (size_t)map->n);
	d->event->clr_instance = reader_u16(&d->in);
	map->il_version = d->version >= 1 ? reader_u64(&d->in) : 0;
	map->adjacent = d->version == 0;
}

static void decode_details(struct decoding *d, const struct clr_layout *layout UNUSED)
{
	struct clr_method_details *details = &d->event->details;

	details->method_id = reader_u64(&d->in);
	details->type_id = reader_u64(&d->in);
	details->token = reader_u32(&d->in);
	details->n_type_params = reader_u32(&d->in);
	details->loader_module_id = reader_u64(&d->in);
	details->type_params = reader_bytes(&d->in, 8 * (size_t)details->n_type_params);
}

/* -- The table ------------------------------------------------------------------------ */

#define BY_LIST(list) decode_fields, list
#define BY_HAND(name) decode_##name, NULL

static const struct clr_layout layouts[] = {
	/* clang-format off */
	{ RUNTIME, 72, CLR_METHOD_DETAILS, CLR_PHASE_LOAD, "Method/MethodDetails", BY_HAND(details) },
	{ RUNTIME, 141, CLR_METHOD_LOAD, CLR_PHASE_LOAD, "Method/Load", BY_HAND(method) },
	{ RUNTIME, 142, CLR_METHOD_UNLOAD, CLR_PHASE_UNLOAD, "Method/Unload", BY_HAND(method) },
	{ RUNTIME, 143, CLR_METHOD_LOAD, CLR_PHASE_LOAD, "Method/LoadVerbose", BY_HAND(method_verbose) },
	{ RUNTIME, 144, CLR_METHOD_UNLOAD, CLR_PHASE_UNLOAD, "Method/UnloadVerbose", BY_HAND(method_verbose) },
	{ RUNTIME, 145, CLR_METHOD_JIT_STARTED, CLR_PHASE_LOAD, "Method/JittingStarted", BY_LIST(jit_started) },
	{ RUNTIME, 146, CLR_METHOD_JIT_MEMORY, CLR_PHASE_LOAD, "Method/MemoryAllocatedForJitCode", BY_LIST(jit_memory) },
	{ RUNTIME, 151, CLR_DOMAIN_MODULE, CLR_PHASE_LOAD, "Loader/DomainModuleLoad", BY_LIST(domain_module) },
	{ RUNTIME, 152, CLR_MODULE, CLR_PHASE_LOAD, "Loader/ModuleLoad", BY_LIST(module) },
	{ RUNTIME, 153, CLR_MODULE, CLR_PHASE_UNLOAD, "Loader/ModuleUnload", BY_LIST(module) },
	{ RUNTIME, 154, CLR_ASSEMBLY, CLR_PHASE_LOAD, "Loader/AssemblyLoad", BY_LIST(assembly) },
	{ RUNTIME, 155, CLR_ASSEMBLY, CLR_PHASE_UNLOAD, "Loader/AssemblyUnload", BY_LIST(assembly) },
	{ RUNTIME, 156, CLR_APP_DOMAIN, CLR_PHASE_LOAD, "Loader/AppDomainLoad", BY_LIST(app_domain) },
	{ RUNTIME, 157, CLR_APP_DOMAIN, CLR_PHASE_UNLOAD, "Loader/AppDomainUnload", BY_LIST(app_domain) },
	{ RUNTIME, 158, CLR_MODULE_RANGE, CLR_PHASE_LOAD, "ClrPerfTrack/ModuleRangeLoad", BY_LIST(module_range) },
	{ RUNTIME, 159, CLR_R2R_ENTRY_POINT, CLR_PHASE_LOAD, "Method/R2RGetEntryPoint", BY_LIST(entry_point) },
	{ RUNTIME, 160, CLR_R2R_ENTRY_POINT_START, CLR_PHASE_LOAD, "Method/R2RGetEntryPointStart", BY_LIST(entry_point_start) },
	{ RUNTIME, 185, CLR_METHOD_INLINING, CLR_PHASE_LOAD, "Method/InliningSucceeded", BY_LIST(inlining_succeeded) },
	{ RUNTIME, 186, CLR_METHOD_INLINING, CLR_PHASE_LOAD, "Method/InliningFailedAnsi", BY_LIST(inlining_failed_chars) },
	{ RUNTIME, 187, CLR_RUNTIME_INFO, CLR_PHASE_LOAD, "Runtime/Start", BY_LIST(runtime_info) },
	{ RUNTIME, 188, CLR_METHOD_TAIL_CALL, CLR_PHASE_LOAD, "Method/TailCallSucceeded", BY_LIST(tail_call_succeeded) },
	{ RUNTIME, 189, CLR_METHOD_TAIL_CALL, CLR_PHASE_LOAD, "Method/TailCallFailedAnsi", BY_LIST(tail_call_failed_chars) },
	{ RUNTIME, 190, CLR_IL_MAP, CLR_PHASE_LOAD, "Method/ILToNativeMap", BY_HAND(il_map) },
	{ RUNTIME, 191, CLR_METHOD_TAIL_CALL, CLR_PHASE_LOAD, "Method/TailCallFailed", BY_LIST(tail_call_failed) },
	{ RUNTIME, 192, CLR_METHOD_INLINING, CLR_PHASE_LOAD, "Method/InliningFailed", BY_LIST(inlining_failed) },
	{ RUNTIME, 280, CLR_TIERED_SETTINGS, CLR_PHASE_LOAD, "TieredCompilation/Settings", BY_LIST(tiered_settings) },
	{ RUNTIME, 281, CLR_TIERED_PAUSE, CLR_PHASE_LOAD, "TieredCompilation/Pause", BY_LIST(instance_only) },
	{ RUNTIME, 282, CLR_TIERED_RESUME, CLR_PHASE_LOAD, "TieredCompilation/Resume", BY_LIST(tiered_resume) },
	{ RUNTIME, 283, CLR_TIERED_JIT_START, CLR_PHASE_LOAD, "TieredCompilation/BackgroundJitStart", BY_LIST(tiered_jit_start) },
	{ RUNTIME, 284, CLR_TIERED_JIT_STOP, CLR_PHASE_LOAD, "TieredCompilation/BackgroundJitStop", BY_LIST(tiered_jit_stop) },

	{ RUNDOWN, 10, CLR_GC_SETTINGS, CLR_PHASE_END, "GC/SettingsRundown", BY_LIST(gc_settings) },
	{ RUNDOWN, 141, CLR_METHOD_RUNDOWN, CLR_PHASE_START, "Method/DCStart", BY_HAND(method) },
	{ RUNDOWN, 142, CLR_METHOD_RUNDOWN, CLR_PHASE_END, "Method/DCStop", BY_HAND(method) },
	{ RUNDOWN, 143, CLR_METHOD_RUNDOWN, CLR_PHASE_START, "Method/DCStartVerbose", BY_HAND(method_verbose) },
	{ RUNDOWN, 144, CLR_METHOD_RUNDOWN, CLR_PHASE_END, "Method/DCStopVerbose", BY_HAND(method_verbose) },
	{ RUNDOWN, 145, CLR_RUNDOWN_MARK, CLR_PHASE_START, "Method/DCStartComplete", BY_LIST(instance_only) },
	{ RUNDOWN, 146, CLR_RUNDOWN_MARK, CLR_PHASE_END, "Method/DCStopComplete", BY_LIST(instance_only) },
	{ RUNDOWN, 147, CLR_RUNDOWN_MARK, CLR_PHASE_START, "Method/DCStartInit", BY_LIST(instance_only) },
	{ RUNDOWN, 148, CLR_RUNDOWN_MARK, CLR_PHASE_END, "Method/DCStopInit", BY_LIST(instance_only) },
	{ RUNDOWN, 149, CLR_IL_MAP, CLR_PHASE_START, "Method/ILToNativeMapDCStart", BY_HAND(il_map) },
	{ RUNDOWN, 150, CLR_IL_MAP, CLR_PHASE_END, "Method/ILToNativeMapDCStop", BY_HAND(il_map) },
	{ RUNDOWN, 151, CLR_DOMAIN_MODULE, CLR_PHASE_START, "Loader/DomainModuleDCStart", BY_LIST(domain_module) },
	{ RUNDOWN, 152, CLR_DOMAIN_MODULE, CLR_PHASE_END, "Loader/DomainModuleDCStop", BY_LIST(domain_module) },
	{ RUNDOWN, 153, CLR_MODULE, CLR_PHASE_START, "Loader/ModuleDCStart", BY_LIST(module) },
	{ RUNDOWN, 154, CLR_MODULE, CLR_PHASE_END, "Loader/ModuleDCStop", BY_LIST(module) },
	{ RUNDOWN, 155, CLR_ASSEMBLY, CLR_PHASE_START, "Loader/AssemblyDCStart", BY_LIST(assembly) },
	{ RUNDOWN, 156, CLR_ASSEMBLY, CLR_PHASE_END, "Loader/AssemblyDCStop", BY_LIST(assembly) },
	{ RUNDOWN, 157, CLR_APP_DOMAIN, CLR_PHASE_START, "Loader/AppDomainDCStart", BY_LIST(app_domain) },
	{ RUNDOWN, 158, CLR_APP_DOMAIN, CLR_PHASE_END, "Loader/AppDomainDCStop", BY_LIST(app_domain) },
	{ RUNDOWN, 159, CLR_THREAD, CLR_PHASE_END, "Loader/ThreadDCStop", BY_LIST(thread) },
	{ RUNDOWN, 160, CLR_MODULE_RANGE, CLR_PHASE_START, "ClrPerfTrack/ModuleRangeDCStart", BY_LIST(module_range) },
	{ RUNDOWN, 161, CLR_MODULE_RANGE, CLR_PHASE_END, "ClrPerfTrack/ModuleRangeDCEnd", BY_LIST(module_range) },
	{ RUNDOWN, 187, CLR_RUNTIME_INFO, CLR_PHASE_START, "Runtime/Start", BY_LIST(runtime_info) },
	{ RUNDOWN, 280, CLR_TIERED_SETTINGS, CLR_PHASE_START, "TieredCompilationRundown/SettingsDCStart", BY_LIST(tiered_settings) },
	{ RUNDOWN, 300, CLR_CHECKPOINT, CLR_PHASE_END, "ExecutionCheckpointRundown/ExecutionCheckpointDCEnd", BY_LIST(checkpoint) },

	{ EVENTPIPE, 1, CLR_PROCESS_INFO, CLR_PHASE_LOAD, "ProcessInfo", BY_LIST(process_info) },
	/* clang-format on */
};

const struct clr_layout *clr_layout_find(const char *provider, uint32_t event_id)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(layouts); i++) {
		if (layouts[i].id == event_id &&
		    !strcmp(provider_names[layouts[i].provider], provider))
			return &layouts[i];
	}
	return NULL;
}

enum clr_kind clr_layout_kind(const struct clr_layout *layout)
{
	return layout ? layout->kind : CLR_IGNORED;
}

const char *clr_layout_name(const struct clr_layout *layout)
{
	return layout->name;
}

/* -- The decoder ---------------------------------------------------------------------- */

void clr_decoder_init(struct clr_decoder *d)
{
	buf_init(&d->text, TEXT_PER_BYTE * CAP_BLOCK_BYTES + TEXT_SLACK);
}

void clr_decoder_deinit(struct clr_decoder *d)
{
	buf_deinit(&d->text);
}

int clr_decode(struct clr_decoder *d, const struct clr_layout *layout, uint32_t version,
	       const uint8_t *payload, size_t size, struct clr_event *event)
{
	struct decoding decoding = { .version = version, .event = event };
	int r;

	if (!layout)
		return CLR_E_UNKNOWN;
	if (size > CAP_BLOCK_BYTES) /* no block could have held it */
		return CLR_E_SHORT;
	r = buf_reserve(&d->text, TEXT_PER_BYTE * size + TEXT_SLACK);
	if (r < 0) {
		buf_clear(&d->text);
		return r;
	}

	if (layout->fields)
		memset(event, 0, sizeof(*event));
	event->kind = layout->kind;
	event->phase = layout->phase;
	event->rundown = layout->provider == RUNDOWN;
	event->id = layout->id;
	event->version = version;
	event->clr_instance = 0;
	reader_init(&decoding.in, payload, size);
	decoding.out = (char *)d->text.data;
	layout->decode(&decoding, layout);
	return decoding.in.bad ? CLR_E_SHORT : 0;
}
