/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON form of events. Method events and IL maps have keys of our own; all others carry the
 * field names that TraceEvent gives them, so that the output of both can be compared by
 * machine. Order of keys is the order of the calls below.
 */
#include "cli/event.h"

#include <inttypes.h>
#include <string.h>

#include "base/util.h"

json_t *event_hex(uint64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "0x%" PRIx64, v);
	return json_string(text);
}

static void put_hex(json_t *o, const char *key, uint64_t v)
{
	json_object_set_new(o, key, event_hex(v));
}

static void put_int(json_t *o, const char *key, uint64_t v)
{
	json_object_set_new(o, key, json_integer((json_int_t)v));
}

static void put_bool(json_t *o, const char *key, bool v)
{
	json_object_set_new(o, key, json_boolean(v));
}

static void put_text(json_t *o, const char *key, const char *s)
{
	json_object_set_new(o, key, json_string(s));
}

static void put_string(json_t *o, const char *key, const struct clr_string *s)
{
	json_object_set_new(o, key, json_stringn(s->s ? s->s : "", s->len));
}

/* 64-bit sizes are decimal strings: JSON readers keep them exact. */
static void put_decimal(json_t *o, const char *key, uint64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, v);
	put_text(o, key, text);
}

static void put_flags(json_t *o, const char *key, enum clr_flag_set set, uint32_t value)
{
	struct clr_text text;

	put_text(o, key, clr_flags_text(&text, set, value));
}

static void put_guid(json_t *o, const char *key, const struct clr_guid *guid)
{
	struct clr_text text;

	put_text(o, key, clr_guid_text(&text, guid));
}

static void put_clr(json_t *o, const struct clr_event *ev)
{
	put_int(o, "ClrInstanceID", ev->clr_instance);
}

static void put_method(json_t *o, const struct nettrace_event *nev, const struct clr_event *ev)
{
	const struct clr_method *m = &ev->method;

	put_int(o, "id", ev->id);
	put_int(o, "v", ev->version);
	put_int(o, "ts", nev->timestamp);
	put_int(o, "tid", nev->thread_id);
	put_hex(o, "method_id", m->method_id);
	put_hex(o, "module_id", m->module_id);
	put_hex(o, "start", m->start);
	put_int(o, "size", m->size);
	put_hex(o, "token", m->token);
	put_hex(o, "flags", m->flags);
	put_text(o, "tier", clr_tier_text(m->flags));
	if (m->verbose) {
		put_string(o, "ns", &m->ns);
		put_string(o, "name", &m->name);
		put_string(o, "sig", &m->sig);
	}
	put_int(o, "rejit", m->version);
	put_int(o, "clr", ev->clr_instance);
}

static void put_il_map(json_t *o, const struct nettrace_event *nev, const struct clr_event *ev)
{
	const struct clr_il_map *m = &ev->il_map;
	struct reader il, native;
	json_t *map = json_array();
	size_t i;

	put_int(o, "v", ev->version);
	put_int(o, "ts", nev->timestamp);
	put_hex(o, "method_id", m->method_id);
	put_int(o, "rejit", m->version);
	put_int(o, "extent", m->extent);
	put_int(o, "n", m->n);
	reader_init(&il, m->il_offsets, 4u * (size_t)m->n);
	reader_init(&native, m->native_offsets, 4u * (size_t)m->n);
	for (i = 0; i < m->n; i++)
		json_array_append_new(map, json_pack("[i,i]", (int)(int32_t)reader_u32(&il),
						     (int)(int32_t)reader_u32(&native)));
	json_object_set_new(o, "map", map);
}

static void put_module(json_t *o, const struct clr_event *ev)
{
	const struct clr_module *m = &ev->module;
	const char *slash;

	put_hex(o, "ModuleID", m->module_id);
	put_hex(o, "AssemblyID", m->assembly_id);
	if (ev->kind == CLR_DOMAIN_MODULE)
		put_hex(o, "AppDomainID", m->app_domain_id);
	put_flags(o, "ModuleFlags", CLR_FLAGS_MODULE, m->flags);
	put_string(o, "ModuleILPath", &m->il_path);
	put_string(o, "ModuleNativePath", &m->native_path);
	if (ev->kind == CLR_DOMAIN_MODULE) {
		put_clr(o, ev);
		return;
	}
	put_guid(o, "ManagedPdbSignature", &m->pdb_guid);
	put_int(o, "ManagedPdbAge", m->pdb_age);
	put_string(o, "ManagedPdbBuildPath", &m->pdb_path);
	put_guid(o, "NativePdbSignature", &m->native_pdb_guid);
	put_int(o, "NativePdbAge", m->native_pdb_age);
	put_string(o, "NativePdbBuildPath", &m->native_pdb_path);
	if (m->native_build_id.len)
		put_string(o, "NativeBuildID", &m->native_build_id);
	slash = m->il_path.len ? strrchr(m->il_path.s, '/') : NULL;
	put_text(o, "ModuleILFileName", slash ? slash + 1 : m->il_path.len ? m->il_path.s : "");
}

static void put_tracing(json_t *o, const struct clr_event *ev)
{
	static const char *const roles[2][3] = {
		{ "MethodBeingCompiled", "Inliner", "Inlinee" },
		{ "MethodBeingCompiled", "Caller", "Callee" },
	};
	const struct clr_jit_tracing *t = &ev->tracing;
	bool tail = ev->kind == CLR_METHOD_TAIL_CALL;
	struct clr_text text;
	char key[64];
	size_t i;

	for (i = 0; i < 3; i++) {
		const char *role = roles[tail][i];

		snprintf(key, sizeof(key), "%sNamespace", role);
		put_string(o, key, &t->ns[i]);
		snprintf(key, sizeof(key), "%sName", role);
		put_string(o, key, &t->name[i]);
		snprintf(key, sizeof(key), "%sNameSignature", role);
		put_string(o, key, &t->sig[i]);
	}
	if (tail)
		put_bool(o, "TailPrefix", t->tail_prefix);
	if (tail && !t->failed)
		put_text(o, "TailCallType", clr_tail_call_text(&text, t->tail_call_type));
	if (!tail && t->failed)
		put_bool(o, "FailAlways", t->fail_always);
	if (t->failed)
		put_string(o, "FailReason", &t->reason);
	put_clr(o, ev);
}

static void put_details(json_t *o, const struct clr_event *ev)
{
	const struct clr_method_details *d = &ev->details;
	json_t *params = json_array();
	struct reader r;
	size_t i;

	put_hex(o, "MethodID", d->method_id);
	put_hex(o, "TypeID", d->type_id);
	put_int(o, "MethodToken", d->token);
	put_int(o, "TypeParameterCount", d->n_type_params);
	put_hex(o, "LoaderModuleID", d->loader_module_id);
	reader_init(&r, d->type_params, 8u * (size_t)d->n_type_params);
	for (i = 0; i < d->n_type_params; i++)
		json_array_append_new(params, event_hex(reader_u64(&r)));
	json_object_set_new(o, "TypeParameters", params);
}

static void put_runtime(json_t *o, const struct clr_event *ev)
{
	static const char *const parts[] = { "Major", "Minor", "Build", "Qfe" };
	const struct clr_runtime_info *i = &ev->runtime;
	char key[32];
	size_t k;

	put_clr(o, ev);
	put_flags(o, "Sku", CLR_FLAGS_SKU, i->sku);
	for (k = 0; k < 4; k++) {
		snprintf(key, sizeof(key), "Bcl%s%s", parts[k], k < 2 ? "Version" : "Number");
		put_int(o, key, i->bcl[k]);
	}
	for (k = 0; k < 4; k++) {
		snprintf(key, sizeof(key), "VM%s%s", parts[k], k < 2 ? "Version" : "Number");
		put_int(o, key, i->vm[k]);
	}
	put_flags(o, "StartupFlags", CLR_FLAGS_STARTUP, i->startup_flags);
	put_flags(o, "StartupMode", CLR_FLAGS_STARTUP_MODE, i->startup_mode);
	put_string(o, "CommandLine", &i->command_line);
	put_guid(o, "ComObjectGuid", &i->com_guid);
	put_string(o, "RuntimeDllPath", &i->dll_path);
}

static void put_other(json_t *o, const struct clr_event *ev)
{
	switch (ev->kind) {
	case CLR_METHOD_JIT_STARTED:
		put_hex(o, "MethodID", ev->jit_started.method_id);
		put_hex(o, "ModuleID", ev->jit_started.module_id);
		put_int(o, "MethodToken", ev->jit_started.token);
		put_int(o, "MethodILSize", ev->jit_started.il_size);
		put_string(o, "MethodNamespace", &ev->jit_started.ns);
		put_string(o, "MethodName", &ev->jit_started.name);
		put_string(o, "MethodSignature", &ev->jit_started.sig);
		put_clr(o, ev);
		break;
	case CLR_METHOD_JIT_MEMORY:
		put_hex(o, "MethodID", ev->jit_memory.method_id);
		put_hex(o, "ModuleID", ev->jit_memory.module_id);
		put_decimal(o, "JitHotCodeRequestSize", ev->jit_memory.hot_size);
		put_decimal(o, "JitRODataRequestSize", ev->jit_memory.rodata_size);
		put_decimal(o, "AllocatedSizeForJitCode", ev->jit_memory.allocated_size);
		put_int(o, "JitAllocFlag", ev->jit_memory.flag);
		put_clr(o, ev);
		break;
	case CLR_METHOD_DETAILS: put_details(o, ev); break;
	case CLR_METHOD_INLINING:
	case CLR_METHOD_TAIL_CALL: put_tracing(o, ev); break;
	case CLR_R2R_ENTRY_POINT:
		put_hex(o, "MethodID", ev->entry_point.method_id);
		put_string(o, "MethodNamespace", &ev->entry_point.ns);
		put_string(o, "MethodName", &ev->entry_point.name);
		put_string(o, "MethodSignature", &ev->entry_point.sig);
		put_hex(o, "EntryPoint", ev->entry_point.entry_point);
		put_clr(o, ev);
		break;
	case CLR_R2R_ENTRY_POINT_START:
		put_hex(o, "MethodID", ev->entry_point.method_id);
		put_clr(o, ev);
		break;
	case CLR_DOMAIN_MODULE:
	case CLR_MODULE: put_module(o, ev); break;
	case CLR_ASSEMBLY:
		put_hex(o, "AssemblyID", ev->assembly.assembly_id);
		put_hex(o, "AppDomainID", ev->assembly.app_domain_id);
		put_flags(o, "AssemblyFlags", CLR_FLAGS_ASSEMBLY, ev->assembly.flags);
		put_string(o, "FullyQualifiedAssemblyName", &ev->assembly.name);
		put_hex(o, "BindingID", ev->assembly.binding_id);
		put_clr(o, ev);
		break;
	case CLR_APP_DOMAIN:
		put_hex(o, "AppDomainID", ev->app_domain.app_domain_id);
		put_flags(o, "AppDomainFlags", CLR_FLAGS_APP_DOMAIN, ev->app_domain.flags);
		put_string(o, "AppDomainName", &ev->app_domain.name);
		put_int(o, "AppDomainIndex", ev->app_domain.index);
		put_clr(o, ev);
		break;
	case CLR_MODULE_RANGE:
		put_hex(o, "ModuleID", ev->range.module_id);
		put_int(o, "RangeBegin", ev->range.begin);
		put_int(o, "RangeSize", ev->range.size);
		put_int(o, "RangeType", ev->range.type);
		put_clr(o, ev);
		break;
	case CLR_THREAD:
		put_hex(o, "ManagedThreadID", ev->thread.managed_id);
		put_hex(o, "AppDomainID", ev->thread.app_domain_id);
		put_flags(o, "Flags", CLR_FLAGS_THREAD, ev->thread.flags);
		put_int(o, "ManagedThreadIndex", ev->thread.index);
		put_int(o, "OSThreadID", ev->thread.os_id);
		put_clr(o, ev);
		break;
	case CLR_RUNTIME_INFO: put_runtime(o, ev); break;
	case CLR_TIERED_SETTINGS:
		put_clr(o, ev);
		put_flags(o, "Flags", CLR_FLAGS_TIERED_SETTINGS, ev->tiered.flags);
		break;
	case CLR_TIERED_RESUME:
		put_clr(o, ev);
		put_int(o, "NewMethodCount", ev->tiered.new_methods);
		break;
	case CLR_TIERED_JIT_START:
		put_clr(o, ev);
		put_int(o, "PendingMethodCount", ev->tiered.pending_methods);
		break;
	case CLR_TIERED_JIT_STOP:
		put_clr(o, ev);
		put_int(o, "PendingMethodCount", ev->tiered.pending_methods);
		put_int(o, "JittedMethodCount", ev->tiered.jitted_methods);
		break;
	case CLR_PROCESS_INFO:
		put_string(o, "CommandLine", &ev->process.command_line);
		put_string(o, "OSInformation", &ev->process.os);
		put_string(o, "ArchInformation", &ev->process.arch);
		break;
	case CLR_CHECKPOINT:
		put_clr(o, ev);
		put_string(o, "Name", &ev->checkpoint.name);
		put_int(o, "Timestamp", ev->checkpoint.timestamp);
		break;
	default: put_clr(o, ev); break;
	}
}

bool event_has_line(const struct clr_event *ev, bool json)
{
	bool silent = ev->kind == CLR_GC_SETTINGS || ev->kind == CLR_PROCESS_INFO ||
		      (ev->kind == CLR_METHOD_TAIL_CALL && ev->tracing.failed);

	return ev->kind != CLR_IGNORED && !(json && silent);
}

json_t *event_json(const struct nettrace_event *nev, const struct clr_layout *layout,
		   const struct clr_event *ev)
{
	json_t *o = json_object();
	const char *word;

	if (!o)
		return NULL;
	switch (ev->kind) {
	case CLR_METHOD_LOAD:
	case CLR_METHOD_UNLOAD:
	case CLR_METHOD_RUNDOWN:
		word = ev->kind == CLR_METHOD_LOAD     ? "load"
		       : ev->kind == CLR_METHOD_UNLOAD ? "unload"
		       : ev->phase == CLR_PHASE_START  ? "dcstart"
						       : "dcend";
		put_text(o, "ev", word);
		put_method(o, nev, ev);
		break;
	case CLR_IL_MAP:
		put_text(o, "ev",
			 !ev->rundown                   ? "ilmap"
			 : ev->phase == CLR_PHASE_START ? "ilmap_dcstart"
							: "ilmap_dcend");
		put_il_map(o, nev, ev);
		break;
	default:
		put_text(o, "ev", "other");
		put_text(o, "event", clr_layout_name(layout));
		put_bool(o, "rundown", ev->rundown);
		put_int(o, "id", ev->id);
		put_int(o, "v", ev->version);
		put_int(o, "ts", nev->timestamp);
		put_other(o, ev);
		break;
	}
	return o;
}
