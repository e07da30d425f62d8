/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each layout is written down twice: its wire form as one letter a field, whose value is the
 * field's number, and what must come of it as text. A field read from the wrong place, in the
 * wrong width or in the wrong version shows in the text.
 */
#include "clr/clr.h"

#include <check.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "tests/unit/stream.h"

#define TEST_CAP MIB(64)

/* -- Payloads by description ----------------------------------------------------------- */

/*
 * 1 2 4 8: an integer of so many bytes, the field's number · s: "s" and the number, 16-bit units ·
 * c: the same in 8-bit units · g: sixteen times the number · n: u16 2 · N: u32 2
 */
static void payload_build(struct buf *b, const char *fields)
{
	unsigned int i, k;
	char text[16];

	for (i = 1; *fields; fields++) {
		snprintf(text, sizeof(text), "%c%u", *fields, i);
		switch (*fields) {
		case '1': buf_put_u8(b, (uint8_t)i); break;
		case '2': buf_put_u16(b, (uint16_t)i); break;
		case '4': buf_put_u32(b, i); break;
		case '8': buf_put_u64(b, i); break;
		case 's': stream_u16z(b, text); break;
		case 'c': buf_append(b, text, strlen(text) + 1); break;
		case 'g':
			for (k = 0; k < 16; k++)
				buf_put_u8(b, (uint8_t)i);
			break;
		case 'n': buf_put_u16(b, 2); break;
		case 'N': buf_put_u32(b, 2); break;
		default: continue;
		}
		i++;
	}
}

static const char *guid_first(const struct clr_guid *guid)
{
	static struct clr_text text;

	clr_guid_text(&text, guid);
	text.s[8] = '\0';
	return text.s;
}

static uint32_t le32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Everything that the event says, in the order of the struct. */
static void render(struct buf *b, const struct clr_event *e)
{
	static const char *const phases[] = { "load", "unload", "start", "end" };
	unsigned int i;

	buf_printf(b, "%u/v%u %s%s clr %u:", e->id, e->version, phases[e->phase],
		   e->rundown ? " rundown" : "", e->clr_instance);
	switch (e->kind) {
	case CLR_METHOD_LOAD:
	case CLR_METHOD_UNLOAD:
	case CLR_METHOD_RUNDOWN:
		buf_printf(b, " method %" PRIu64 " module %" PRIu64 " start %" PRIu64,
			   e->method.method_id, e->method.module_id, e->method.start);
		buf_printf(b, " version %" PRIu64 " size %u token %u flags %u%s [%s][%s][%s]",
			   e->method.version, e->method.size, e->method.token, e->method.flags,
			   e->method.verbose ? " verbose" : "", e->method.ns.s, e->method.name.s,
			   e->method.sig.s);
		break;
	case CLR_METHOD_JIT_STARTED:
		buf_printf(b, " method %" PRIu64 " module %" PRIu64 " token %u il %u [%s][%s][%s]",
			   e->jit_started.method_id, e->jit_started.module_id, e->jit_started.token,
			   e->jit_started.il_size, e->jit_started.ns.s, e->jit_started.name.s,
			   e->jit_started.sig.s);
		break;
	case CLR_METHOD_JIT_MEMORY:
		buf_printf(b, " method %" PRIu64 " module %" PRIu64 " hot %" PRIu64,
			   e->jit_memory.method_id, e->jit_memory.module_id,
			   e->jit_memory.hot_size);
		buf_printf(b, " ro %" PRIu64 " allocated %" PRIu64 " flag %u",
			   e->jit_memory.rodata_size, e->jit_memory.allocated_size,
			   e->jit_memory.flag);
		break;
	case CLR_METHOD_DETAILS:
		buf_printf(b, " method %" PRIu64 " type %" PRIu64 " loader %" PRIu64,
			   e->details.method_id, e->details.type_id, e->details.loader_module_id);
		buf_printf(b, " token %u", e->details.token);
		for (i = 0; i < e->details.n_type_params; i++)
			buf_printf(b, " <%u>", le32(e->details.type_params + 8 * i));
		break;
	case CLR_METHOD_INLINING:
	case CLR_METHOD_TAIL_CALL:
		for (i = 0; i < 3; i++)
			buf_printf(b, " [%s][%s][%s]", e->tracing.ns[i].s, e->tracing.name[i].s,
				   e->tracing.sig[i].s);
		buf_printf(b, "%s always %d prefix %d type %u [%s]",
			   e->tracing.failed ? " failed" : "", e->tracing.fail_always,
			   e->tracing.tail_prefix, e->tracing.tail_call_type, e->tracing.reason.s);
		break;
	case CLR_R2R_ENTRY_POINT:
	case CLR_R2R_ENTRY_POINT_START:
		buf_printf(b, " method %" PRIu64 " at %" PRIu64 " [%s][%s][%s]",
			   e->entry_point.method_id, e->entry_point.entry_point,
			   e->entry_point.ns.s, e->entry_point.name.s, e->entry_point.sig.s);
		break;
	case CLR_IL_MAP:
		buf_printf(b, " method %" PRIu64 " version %" PRIu64 " il %" PRIu64,
			   e->il_map.method_id, e->il_map.version, e->il_map.il_version);
		buf_printf(b, " extent %u%s", e->il_map.extent,
			   e->il_map.adjacent ? " adjacent" : "");
		for (i = 0; i < e->il_map.n; i++)
			buf_printf(b, " %u=%u", le32(e->il_map.il_offsets + 4 * i),
				   le32(e->il_map.native_offsets + 4 * i));
		break;
	case CLR_DOMAIN_MODULE:
	case CLR_MODULE:
		buf_printf(b, " module %" PRIu64 " assembly %" PRIu64 " domain %" PRIu64,
			   e->module.module_id, e->module.assembly_id, e->module.app_domain_id);
		buf_printf(b, " flags %u [%s][%s]", e->module.flags, e->module.il_path.s,
			   e->module.native_path.s);
		buf_printf(b, " pdb %s %u [%s]", guid_first(&e->module.pdb_guid), e->module.pdb_age,
			   e->module.pdb_path.s);
		buf_printf(b, " native %s %u [%s][%s]", guid_first(&e->module.native_pdb_guid),
			   e->module.native_pdb_age, e->module.native_pdb_path.s,
			   e->module.native_build_id.s);
		break;
	case CLR_ASSEMBLY:
		buf_printf(b, " assembly %" PRIu64 " domain %" PRIu64 " binding %" PRIu64,
			   e->assembly.assembly_id, e->assembly.app_domain_id,
			   e->assembly.binding_id);
		buf_printf(b, " flags %u [%s]", e->assembly.flags, e->assembly.name.s);
		break;
	case CLR_APP_DOMAIN:
		buf_printf(b, " domain %" PRIu64 " flags %u index %u [%s]",
			   e->app_domain.app_domain_id, e->app_domain.flags, e->app_domain.index,
			   e->app_domain.name.s);
		break;
	case CLR_MODULE_RANGE:
		buf_printf(b, " module %" PRIu64 " begin %u size %u type %u", e->range.module_id,
			   e->range.begin, e->range.size, e->range.type);
		break;
	case CLR_THREAD:
		buf_printf(b, " thread %" PRIu64 " domain %" PRIu64 " flags %u index %u os %u",
			   e->thread.managed_id, e->thread.app_domain_id, e->thread.flags,
			   e->thread.index, e->thread.os_id);
		break;
	case CLR_RUNTIME_INFO:
		buf_printf(b, " sku %u", e->runtime.sku);
		for (i = 0; i < 4; i++)
			buf_printf(b, " bcl %u", e->runtime.bcl[i]);
		for (i = 0; i < 4; i++)
			buf_printf(b, " vm %u", e->runtime.vm[i]);
		buf_printf(b, " flags %u mode %u [%s] com %s [%s]", e->runtime.startup_flags,
			   e->runtime.startup_mode, e->runtime.command_line.s,
			   guid_first(&e->runtime.com_guid), e->runtime.dll_path.s);
		break;
	case CLR_TIERED_SETTINGS:
	case CLR_TIERED_PAUSE:
	case CLR_TIERED_RESUME:
	case CLR_TIERED_JIT_START:
	case CLR_TIERED_JIT_STOP:
		buf_printf(b, " flags %u new %u pending %u jitted %u", e->tiered.flags,
			   e->tiered.new_methods, e->tiered.pending_methods,
			   e->tiered.jitted_methods);
		break;
	case CLR_GC_SETTINGS:
		buf_printf(b, " limit %" PRIu64 " loh %" PRIu64 " memory %" PRIu64,
			   e->gc.hard_limit, e->gc.loh_threshold, e->gc.physical_memory);
		buf_printf(b, " gen0 %" PRIu64 "-%" PRIu64 " high %u flags %u",
			   e->gc.gen0_min_budget, e->gc.gen0_max_budget, e->gc.high_memory_percent,
			   e->gc.flags);
		break;
	case CLR_CHECKPOINT:
		buf_printf(b, " [%s] at %" PRIu64, e->checkpoint.name.s, e->checkpoint.timestamp);
		break;
	case CLR_PROCESS_INFO:
		buf_printf(b, " [%s][%s][%s]", e->process.command_line.s, e->process.os.s,
			   e->process.arch.s);
		break;
	case CLR_RUNDOWN_MARK:
	case CLR_IGNORED: break;
	}
}

/* -- The layouts ------------------------------------------------------------------------ */

#define RT          CLR_PROVIDER_RUNTIME
#define RD          CLR_PROVIDER_RUNDOWN
#define EP          CLR_PROVIDER_EVENTPIPE

#define METHOD      "method 1 module 2 start 3"
#define METHOD_SIZE "size 4 token 5 flags 6"
#define STRINGS(a)  "[s" #a "]"
#define NINE        "[s1][s2][s3] [s4][s5][s6] [s7][s8][s9]"
#define NO_GUID     "00000000 0 []"
#define NO_PDB      " pdb " NO_GUID " native " NO_GUID "[]"

static const struct {
	const char *provider;
	uint32_t id, version;
	enum clr_kind kind;
	const char *name;
	const char *fields;
	const char *text;
} layouts[] = {
	/* clang-format off */
	{ RT, 72, 0, CLR_METHOD_DETAILS, "Method/MethodDetails", "884N888",
	  "72/v0 load clr 0: method 1 type 2 loader 5 token 3 <6> <7>" },
	{ RT, 141, 0, CLR_METHOD_LOAD, "Method/Load", "888444",
	  "141/v0 load clr 0: " METHOD " version 0 " METHOD_SIZE " [][][]" },
	{ RT, 141, 1, CLR_METHOD_LOAD, "Method/Load", "8884442",
	  "141/v1 load clr 7: " METHOD " version 0 " METHOD_SIZE " [][][]" },
	{ RT, 141, 2, CLR_METHOD_LOAD, "Method/Load", "88844428",
	  "141/v2 load clr 7: " METHOD " version 8 " METHOD_SIZE " [][][]" },
	{ RT, 142, 2, CLR_METHOD_UNLOAD, "Method/Unload", "88844428",
	  "142/v2 unload clr 7: " METHOD " version 8 " METHOD_SIZE " [][][]" },
	{ RT, 143, 0, CLR_METHOD_LOAD, "Method/LoadVerbose", "888444sss",
	  "143/v0 load clr 0: " METHOD " version 0 " METHOD_SIZE " verbose [s7][s8][s9]" },
	{ RT, 143, 1, CLR_METHOD_LOAD, "Method/LoadVerbose", "888444sss2",
	  "143/v1 load clr 10: " METHOD " version 0 " METHOD_SIZE " verbose [s7][s8][s9]" },
	{ RT, 143, 2, CLR_METHOD_LOAD, "Method/LoadVerbose", "888444sss28",
	  "143/v2 load clr 10: " METHOD " version 11 " METHOD_SIZE " verbose [s7][s8][s9]" },
	{ RT, 144, 2, CLR_METHOD_UNLOAD, "Method/UnloadVerbose", "888444sss28",
	  "144/v2 unload clr 10: " METHOD " version 11 " METHOD_SIZE " verbose [s7][s8][s9]" },
	{ RT, 145, 0, CLR_METHOD_JIT_STARTED, "Method/JittingStarted", "8844sss",
	  "145/v0 load clr 0: method 1 module 2 token 3 il 4 [s5][s6][s7]" },
	{ RT, 145, 1, CLR_METHOD_JIT_STARTED, "Method/JittingStarted", "8844sss2",
	  "145/v1 load clr 8: method 1 module 2 token 3 il 4 [s5][s6][s7]" },
	{ RT, 146, 0, CLR_METHOD_JIT_MEMORY, "Method/MemoryAllocatedForJitCode", "8888842",
	  "146/v0 load clr 7: method 1 module 2 hot 3 ro 4 allocated 5 flag 6" },
	{ RT, 151, 0, CLR_DOMAIN_MODULE, "Loader/DomainModuleLoad", "88844ss",
	  "151/v0 load clr 0: module 1 assembly 2 domain 3 flags 4 [s6][s7]" NO_PDB },
	{ RT, 151, 1, CLR_DOMAIN_MODULE, "Loader/DomainModuleLoad", "88844ss2",
	  "151/v1 load clr 8: module 1 assembly 2 domain 3 flags 4 [s6][s7]" NO_PDB },
	{ RT, 152, 0, CLR_MODULE, "Loader/ModuleLoad", "8844ss",
	  "152/v0 load clr 0: module 1 assembly 2 domain 0 flags 3 [s5][s6]" NO_PDB },
	{ RT, 152, 1, CLR_MODULE, "Loader/ModuleLoad", "8844ss2",
	  "152/v1 load clr 7: module 1 assembly 2 domain 0 flags 3 [s5][s6]" NO_PDB },
	{ RT, 152, 2, CLR_MODULE, "Loader/ModuleLoad", "8844ss2g4sg4s",
	  "152/v2 load clr 7: module 1 assembly 2 domain 0 flags 3 [s5][s6] "
	  "pdb 08080808 9 [s10] native 0b0b0b0b 12 [s13][]" },
	{ RT, 152, 3, CLR_MODULE, "Loader/ModuleLoad", "8844ss2g4sg4ss",
	  "152/v3 load clr 7: module 1 assembly 2 domain 0 flags 3 [s5][s6] "
	  "pdb 08080808 9 [s10] native 0b0b0b0b 12 [s13][s14]" },
	{ RT, 153, 3, CLR_MODULE, "Loader/ModuleUnload", "8844ss2g4sg4ss",
	  "153/v3 unload clr 7: module 1 assembly 2 domain 0 flags 3 [s5][s6] "
	  "pdb 08080808 9 [s10] native 0b0b0b0b 12 [s13][s14]" },
	{ RT, 154, 0, CLR_ASSEMBLY, "Loader/AssemblyLoad", "884s",
	  "154/v0 load clr 0: assembly 1 domain 2 binding 0 flags 3 [s4]" },
	{ RT, 154, 1, CLR_ASSEMBLY, "Loader/AssemblyLoad", "8884s2",
	  "154/v1 load clr 6: assembly 1 domain 2 binding 3 flags 4 [s5]" },
	{ RT, 155, 1, CLR_ASSEMBLY, "Loader/AssemblyUnload", "8884s2",
	  "155/v1 unload clr 6: assembly 1 domain 2 binding 3 flags 4 [s5]" },
	{ RT, 156, 0, CLR_APP_DOMAIN, "Loader/AppDomainLoad", "84s",
	  "156/v0 load clr 0: domain 1 flags 2 index 0 [s3]" },
	{ RT, 156, 1, CLR_APP_DOMAIN, "Loader/AppDomainLoad", "84s42",
	  "156/v1 load clr 5: domain 1 flags 2 index 4 [s3]" },
	{ RT, 157, 1, CLR_APP_DOMAIN, "Loader/AppDomainUnload", "84s42",
	  "157/v1 unload clr 5: domain 1 flags 2 index 4 [s3]" },
	{ RT, 158, 0, CLR_MODULE_RANGE, "ClrPerfTrack/ModuleRangeLoad", "28441",
	  "158/v0 load clr 1: module 2 begin 3 size 4 type 5" },
	{ RT, 159, 0, CLR_R2R_ENTRY_POINT, "Method/R2RGetEntryPoint", "8sss82",
	  "159/v0 load clr 6: method 1 at 5 [s2][s3][s4]" },
	{ RT, 160, 0, CLR_R2R_ENTRY_POINT_START, "Method/R2RGetEntryPointStart", "82",
	  "160/v0 load clr 2: method 1 at 0 [][][]" },
	{ RT, 185, 0, CLR_METHOD_INLINING, "Method/InliningSucceeded", "sssssssss2",
	  "185/v0 load clr 10: " NINE " always 0 prefix 0 type 0 []" },
	{ RT, 186, 0, CLR_METHOD_INLINING, "Method/InliningFailedAnsi", "sssssssss4c2",
	  "186/v0 load clr 12: " NINE " failed always 1 prefix 0 type 0 [c11]" },
	{ RT, 187, 0, CLR_RUNTIME_INFO, "Runtime/Start", "222222222241sgs",
	  "187/v0 load clr 1: sku 2 bcl 3 bcl 4 bcl 5 bcl 6 vm 7 vm 8 vm 9 vm 10 flags 11 mode 12 "
	  "[s13] com 0e0e0e0e [s15]" },
	{ RT, 188, 0, CLR_METHOD_TAIL_CALL, "Method/TailCallSucceeded", "sssssssss442",
	  "188/v0 load clr 12: " NINE " always 0 prefix 1 type 11 []" },
	{ RT, 189, 0, CLR_METHOD_TAIL_CALL, "Method/TailCallFailedAnsi", "sssssssss4c2",
	  "189/v0 load clr 12: " NINE " failed always 0 prefix 1 type 0 [c11]" },
	{ RT, 190, 0, CLR_IL_MAP, "Method/ILToNativeMap", "881n44442",
	  "190/v0 load clr 9: method 1 version 2 il 0 extent 3 adjacent 5=7 6=8" },
	{ RT, 190, 1, CLR_IL_MAP, "Method/ILToNativeMap", "881n444428",
	  "190/v1 load clr 9: method 1 version 2 il 10 extent 3 5=7 6=8" },
	{ RT, 191, 0, CLR_METHOD_TAIL_CALL, "Method/TailCallFailed", "sssssssss4s2",
	  "191/v0 load clr 12: " NINE " failed always 0 prefix 1 type 0 [s11]" },
	{ RT, 192, 0, CLR_METHOD_INLINING, "Method/InliningFailed", "sssssssss4s2",
	  "192/v0 load clr 12: " NINE " failed always 1 prefix 0 type 0 [s11]" },
	{ RT, 280, 0, CLR_TIERED_SETTINGS, "TieredCompilation/Settings", "24",
	  "280/v0 load clr 1: flags 2 new 0 pending 0 jitted 0" },
	{ RT, 281, 0, CLR_TIERED_PAUSE, "TieredCompilation/Pause", "2",
	  "281/v0 load clr 1: flags 0 new 0 pending 0 jitted 0" },
	{ RT, 282, 0, CLR_TIERED_RESUME, "TieredCompilation/Resume", "24",
	  "282/v0 load clr 1: flags 0 new 2 pending 0 jitted 0" },
	{ RT, 283, 0, CLR_TIERED_JIT_START, "TieredCompilation/BackgroundJitStart", "24",
	  "283/v0 load clr 1: flags 0 new 0 pending 2 jitted 0" },
	{ RT, 284, 0, CLR_TIERED_JIT_STOP, "TieredCompilation/BackgroundJitStop", "244",
	  "284/v0 load clr 1: flags 0 new 0 pending 2 jitted 3" },

	{ RD, 10, 0, CLR_GC_SETTINGS, "GC/SettingsRundown", "88888442",
	  "10/v0 end rundown clr 8: limit 1 loh 2 memory 3 gen0 4-5 high 6 flags 7" },
	{ RD, 141, 2, CLR_METHOD_RUNDOWN, "Method/DCStart", "88844428",
	  "141/v2 start rundown clr 7: " METHOD " version 8 " METHOD_SIZE " [][][]" },
	{ RD, 142, 2, CLR_METHOD_RUNDOWN, "Method/DCStop", "88844428",
	  "142/v2 end rundown clr 7: " METHOD " version 8 " METHOD_SIZE " [][][]" },
	{ RD, 143, 2, CLR_METHOD_RUNDOWN, "Method/DCStartVerbose", "888444sss28",
	  "143/v2 start rundown clr 10: " METHOD " version 11 " METHOD_SIZE " verbose [s7][s8][s9]" },
	{ RD, 144, 1, CLR_METHOD_RUNDOWN, "Method/DCStopVerbose", "888444sss2",
	  "144/v1 end rundown clr 10: " METHOD " version 0 " METHOD_SIZE " verbose [s7][s8][s9]" },
	{ RD, 144, 2, CLR_METHOD_RUNDOWN, "Method/DCStopVerbose", "888444sss28",
	  "144/v2 end rundown clr 10: " METHOD " version 11 " METHOD_SIZE " verbose [s7][s8][s9]" },
	{ RD, 145, 1, CLR_RUNDOWN_MARK, "Method/DCStartComplete", "2", "145/v1 start rundown clr 1:" },
	{ RD, 146, 1, CLR_RUNDOWN_MARK, "Method/DCStopComplete", "2", "146/v1 end rundown clr 1:" },
	{ RD, 147, 1, CLR_RUNDOWN_MARK, "Method/DCStartInit", "2", "147/v1 start rundown clr 1:" },
	{ RD, 148, 1, CLR_RUNDOWN_MARK, "Method/DCStopInit", "2", "148/v1 end rundown clr 1:" },
	{ RD, 149, 1, CLR_IL_MAP, "Method/ILToNativeMapDCStart", "881n444428",
	  "149/v1 start rundown clr 9: method 1 version 2 il 10 extent 3 5=7 6=8" },
	{ RD, 150, 0, CLR_IL_MAP, "Method/ILToNativeMapDCStop", "881n44442",
	  "150/v0 end rundown clr 9: method 1 version 2 il 0 extent 3 adjacent 5=7 6=8" },
	{ RD, 150, 1, CLR_IL_MAP, "Method/ILToNativeMapDCStop", "881n444428",
	  "150/v1 end rundown clr 9: method 1 version 2 il 10 extent 3 5=7 6=8" },
	{ RD, 151, 1, CLR_DOMAIN_MODULE, "Loader/DomainModuleDCStart", "88844ss2",
	  "151/v1 start rundown clr 8: module 1 assembly 2 domain 3 flags 4 [s6][s7]" NO_PDB },
	{ RD, 152, 1, CLR_DOMAIN_MODULE, "Loader/DomainModuleDCStop", "88844ss2",
	  "152/v1 end rundown clr 8: module 1 assembly 2 domain 3 flags 4 [s6][s7]" NO_PDB },
	{ RD, 153, 3, CLR_MODULE, "Loader/ModuleDCStart", "8844ss2g4sg4ss",
	  "153/v3 start rundown clr 7: module 1 assembly 2 domain 0 flags 3 [s5][s6] "
	  "pdb 08080808 9 [s10] native 0b0b0b0b 12 [s13][s14]" },
	{ RD, 154, 3, CLR_MODULE, "Loader/ModuleDCStop", "8844ss2g4sg4ss",
	  "154/v3 end rundown clr 7: module 1 assembly 2 domain 0 flags 3 [s5][s6] "
	  "pdb 08080808 9 [s10] native 0b0b0b0b 12 [s13][s14]" },
	{ RD, 155, 1, CLR_ASSEMBLY, "Loader/AssemblyDCStart", "8884s2",
	  "155/v1 start rundown clr 6: assembly 1 domain 2 binding 3 flags 4 [s5]" },
	{ RD, 156, 1, CLR_ASSEMBLY, "Loader/AssemblyDCStop", "8884s2",
	  "156/v1 end rundown clr 6: assembly 1 domain 2 binding 3 flags 4 [s5]" },
	{ RD, 157, 1, CLR_APP_DOMAIN, "Loader/AppDomainDCStart", "84s42",
	  "157/v1 start rundown clr 5: domain 1 flags 2 index 4 [s3]" },
	{ RD, 158, 1, CLR_APP_DOMAIN, "Loader/AppDomainDCStop", "84s42",
	  "158/v1 end rundown clr 5: domain 1 flags 2 index 4 [s3]" },
	{ RD, 159, 0, CLR_THREAD, "Loader/ThreadDCStop", "884442",
	  "159/v0 end rundown clr 6: thread 1 domain 2 flags 3 index 4 os 5" },
	{ RD, 160, 0, CLR_MODULE_RANGE, "ClrPerfTrack/ModuleRangeDCStart", "28441",
	  "160/v0 start rundown clr 1: module 2 begin 3 size 4 type 5" },
	{ RD, 161, 0, CLR_MODULE_RANGE, "ClrPerfTrack/ModuleRangeDCEnd", "28441",
	  "161/v0 end rundown clr 1: module 2 begin 3 size 4 type 5" },
	{ RD, 187, 0, CLR_RUNTIME_INFO, "Runtime/Start", "222222222241sgs",
	  "187/v0 start rundown clr 1: sku 2 bcl 3 bcl 4 bcl 5 bcl 6 vm 7 vm 8 vm 9 vm 10 flags 11 "
	  "mode 12 [s13] com 0e0e0e0e [s15]" },
	{ RD, 280, 0, CLR_TIERED_SETTINGS, "TieredCompilationRundown/SettingsDCStart", "24",
	  "280/v0 start rundown clr 1: flags 2 new 0 pending 0 jitted 0" },
	{ RD, 300, 0, CLR_CHECKPOINT, "ExecutionCheckpointRundown/ExecutionCheckpointDCEnd", "2s8",
	  "300/v0 end rundown clr 1: [s2] at 3" },
	{ EP, 1, 0, CLR_PROCESS_INFO, "ProcessInfo", "s", "1/v0 load clr 0: [s1][][]" },
	{ EP, 1, 1, CLR_PROCESS_INFO, "ProcessInfo", "sss", "1/v1 load clr 0: [s1][s2][s3]" },
	/* clang-format on */
};

/* Highest version of each kind of event that is known. */
static uint32_t newest_version(const char *provider, uint32_t id)
{
	uint32_t version = 0;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(layouts); i++) {
		if (!strcmp(layouts[i].provider, provider) && layouts[i].id == id)
			version = MAX(version, layouts[i].version);
	}
	return version;
}

struct fixture {
	struct clr_decoder decoder;
	struct buf payload, text;
	struct clr_event event;
};

static void fixture_init(struct fixture *f)
{
	clr_decoder_init(&f->decoder);
	buf_init(&f->payload, TEST_CAP);
	buf_init(&f->text, TEST_CAP);
	/* nothing of what was there may shine through */
	memset(&f->event, 0xa5, sizeof(f->event));
}

static void fixture_deinit(struct fixture *f)
{
	clr_decoder_deinit(&f->decoder);
	buf_deinit(&f->payload);
	buf_deinit(&f->text);
}

#define _cleanup_fixture_ _cleanup_(fixture_deinit)

/* Decodes from an allocation of the exact size, for the sanitizers. */
static int fixture_decode(struct fixture *f, const char *provider, uint32_t id, uint32_t version,
			  size_t size)
{
	_cleanup_free_ uint8_t *exact = malloc(size ? size : 1);
	int r;

	memcpy(exact, f->payload.data, size);
	r = clr_decode(&f->decoder, clr_layout_find(provider, id), version, exact, size, &f->event);
	buf_clear(&f->text);
	if (!r)
		render(&f->text, &f->event);
	return r;
}

START_TEST(test_layout)
{
	const struct clr_layout *layout = clr_layout_find(layouts[_i].provider, layouts[_i].id);
	_cleanup_fixture_ struct fixture f;

	ck_assert_ptr_nonnull(layout);
	ck_assert_int_eq(clr_layout_kind(layout), layouts[_i].kind);
	ck_assert_str_eq(clr_layout_name(layout), layouts[_i].name);
	fixture_init(&f);
	payload_build(&f.payload, layouts[_i].fields);
	ck_assert_int_eq(fixture_decode(&f, layouts[_i].provider, layouts[_i].id,
					layouts[_i].version, f.payload.len),
			 0);
	ck_assert_int_eq(f.event.kind, layouts[_i].kind);
	ck_assert_str_eq(buf_cstr(&f.text), layouts[_i].text);
}
END_TEST

/* A byte too few anywhere is told, and never read. */
START_TEST(test_short)
{
	_cleanup_fixture_ struct fixture f;
	size_t n;

	fixture_init(&f);
	payload_build(&f.payload, layouts[_i].fields);
	for (n = 0; n < f.payload.len; n++)
		ck_assert_int_eq(fixture_decode(&f, layouts[_i].provider, layouts[_i].id,
						layouts[_i].version, n),
				 CLR_E_SHORT);
}
END_TEST

/* A version from the future is read by what is known of it. */
START_TEST(test_newer)
{
	_cleanup_fixture_ struct fixture f;
	char expected[512];
	uint32_t version;

	fixture_init(&f);
	if (layouts[_i].version != newest_version(layouts[_i].provider, layouts[_i].id))
		return;
	payload_build(&f.payload, layouts[_i].fields);
	buf_puts(&f.payload, "who knows");
	for (version = layouts[_i].version + 1; version; version *= 16) {
		ck_assert_int_eq(fixture_decode(&f, layouts[_i].provider, layouts[_i].id, version,
						f.payload.len),
				 0);
		snprintf(expected, sizeof(expected), "%u/v%u%s", layouts[_i].id, version,
			 strchr(layouts[_i].text, ' '));
		ck_assert_str_eq(buf_cstr(&f.text), expected);
	}
}
END_TEST

START_TEST(test_not_ours)
{
	_cleanup_fixture_ struct fixture f;

	ck_assert_ptr_null(clr_layout_find("Microsoft-Windows-DotNETRuntimePrivate", 189));
	ck_assert_ptr_null(clr_layout_find("", 143));
	ck_assert_ptr_null(clr_layout_find(CLR_PROVIDER_RUNTIME, 1));
	ck_assert_ptr_null(clr_layout_find(CLR_PROVIDER_RUNTIME, 0x10000 + 143));
	ck_assert_ptr_null(clr_layout_find(CLR_PROVIDER_RUNTIME, 150));
	ck_assert_ptr_null(clr_layout_find(CLR_PROVIDER_RUNDOWN, 190));
	ck_assert_ptr_null(clr_layout_find(CLR_PROVIDER_EVENTPIPE, 2));
	ck_assert_int_eq(clr_layout_kind(NULL), CLR_IGNORED);
	fixture_init(&f);
	ck_assert_int_eq(clr_decode(&f.decoder, NULL, 0, (const uint8_t *)"x", 1, &f.event),
			 CLR_E_UNKNOWN);
}
END_TEST

/* -- Numbers that lie ------------------------------------------------------------------- */

static void il_map_payload(struct buf *b, uint16_t n, uint32_t n_sent)
{
	uint32_t i;

	buf_put_u64(b, 1);
	buf_put_u64(b, 2);
	buf_put_u8(b, 0);
	buf_put_u16(b, n);
	for (i = 0; i < 2 * n_sent; i++)
		buf_put_u32(b, i);
	buf_put_u16(b, 0);
	buf_put_u64(b, 0);
}

static const struct {
	uint16_t n;
	uint32_t n_sent;
	int result;
} il_maps[] = {
	{ 0, 0, 0 },
	{ 1, 1, 0 },
	{ 2, 0, CLR_E_SHORT },
	{ 3, 2, CLR_E_SHORT },
	{ CAP_IL_ENTRIES, CAP_IL_ENTRIES, 0 },
	{ CAP_IL_ENTRIES, CAP_IL_ENTRIES - 2, CLR_E_SHORT },
	{ CAP_IL_ENTRIES + 1, CAP_IL_ENTRIES + 1, CLR_E_SHORT },
	{ 0xffff, 0xffff, CLR_E_SHORT },
};

START_TEST(test_il_map)
{
	_cleanup_fixture_ struct fixture f;
	uint16_t n = il_maps[_i].n;

	fixture_init(&f);
	il_map_payload(&f.payload, n, il_maps[_i].n_sent);
	ck_assert_int_eq(clr_decode(&f.decoder, clr_layout_find(RT, 190), 1, f.payload.data,
				    f.payload.len, &f.event),
			 il_maps[_i].result);
	if (il_maps[_i].result)
		return;
	ck_assert_uint_eq(f.event.il_map.n, n);
	ck_assert_ptr_eq(f.event.il_map.il_offsets, f.payload.data + 19);
	ck_assert_ptr_eq(f.event.il_map.native_offsets, f.payload.data + 19 + 4 * (size_t)n);
}
END_TEST

START_TEST(test_type_params)
{
	_cleanup_fixture_ struct fixture f;

	fixture_init(&f);
	payload_build(&f.payload, "884N888");
	memset(f.payload.data + 20, 0xff, 4); /* 4 billion, of which two are there */
	ck_assert_int_eq(fixture_decode(&f, RT, 72, 0, f.payload.len), CLR_E_SHORT);
	memset(f.payload.data + 20, 0, 4);
	ck_assert_int_eq(fixture_decode(&f, RT, 72, 0, f.payload.len), 0);
	ck_assert_uint_eq(f.event.details.n_type_params, 0);
}
END_TEST

/* -- Text ---------------------------------------------------------------------------------- */

static const struct {
	uint16_t units[8];
	const char *text;
} texts[] = {
	{ { 0 }, "" },
	{ { 'a', 0 }, "a" },
	{ { 1, 31, '\n', '"', 0 }, "\x01\x1f\n\"" },
	{ { 0x7f, 0x80, 0x7ff, 0x800, 0xffff, 0 }, "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf" },
	{ { 0xd83d, 0xde00, 'x', 0 }, "\xf0\x9f\x98\x80x" },
	{ { 0xd83d, 'x', 0 }, "\xef\xbf\xbdx" },               /* high alone */
	{ { 0xde00, 0xd83d, 0 }, "\xef\xbf\xbd\xef\xbf\xbd" }, /* the wrong way round */
	{ { 0xd83d, 0 }, "\xef\xbf\xbd" },                     /* high before the terminator */
	{ { 0xd83d, 0xd83d, 0xde00, 0 }, "\xef\xbf\xbd\xf0\x9f\x98\x80" },
};

START_TEST(test_strings)
{
	_cleanup_fixture_ struct fixture f;
	const struct clr_method *method = &f.event.method;
	size_t i, k;

	fixture_init(&f);
	payload_build(&f.payload, "888444");
	for (k = 0; k < 3; k++) {
		for (i = 0; i == 0 || texts[_i].units[i - 1]; i++)
			buf_put_u16(&f.payload, texts[_i].units[i]);
	}
	buf_put_u16(&f.payload, 7);
	ck_assert_int_eq(clr_decode(&f.decoder, clr_layout_find(RT, 143), 1, f.payload.data,
				    f.payload.len, &f.event),
			 0);
	ck_assert_str_eq(method->ns.s, texts[_i].text);
	ck_assert_str_eq(method->name.s, texts[_i].text);
	ck_assert_str_eq(method->sig.s, texts[_i].text);
	ck_assert_uint_eq(method->sig.len, strlen(texts[_i].text));
	ck_assert_uint_eq(f.event.clr_instance, 7);
}
END_TEST

/* The scratch must hold the worst case: three bytes a unit, then again and again. */
START_TEST(test_longest_strings)
{
	static const size_t lengths[] = { 0, 1, 7, 8, 9, 1000, 32000, 1000000 };
	_cleanup_fixture_ struct fixture f;
	size_t i, k, n;

	fixture_init(&f);
	for (i = 0; i < ARRAY_SIZE(lengths); i++) {
		buf_clear(&f.payload);
		payload_build(&f.payload, "888444");
		for (k = 0; k < 3; k++) {
			for (n = 0; n < lengths[i]; n++)
				buf_put_u16(&f.payload, 0x20ac);
			buf_put_u16(&f.payload, 0);
		}
		buf_put_u16(&f.payload, 0);
		ck_assert_int_eq(clr_decode(&f.decoder, clr_layout_find(RT, 143), 1, f.payload.data,
					    f.payload.len, &f.event),
				 0);
		ck_assert_uint_eq(f.event.method.sig.len, 3 * lengths[i]);
		ck_assert_uint_eq(strlen(f.event.method.ns.s), 3 * lengths[i]);
	}
}
END_TEST

START_TEST(test_chars)
{
	_cleanup_fixture_ struct fixture f;

	fixture_init(&f);
	payload_build(&f.payload, "sssssssss4");
	buf_append(&f.payload, "no\x80\xff\n", 6);
	buf_put_u16(&f.payload, 3);
	ck_assert_int_eq(fixture_decode(&f, RT, 186, 0, f.payload.len), 0);
	ck_assert_str_eq(f.event.tracing.reason.s, "no\xc2\x80\xc3\xbf\n");
	ck_assert_uint_eq(f.event.tracing.reason.len, 7);
	ck_assert_uint_eq(f.event.clr_instance, 3);
}
END_TEST

/* No block could have held it; the scratch is not to grow for it. */
START_TEST(test_too_large)
{
	_cleanup_fixture_ struct fixture f;

	fixture_init(&f);
	ck_assert_int_eq(buf_reserve(&f.payload, CAP_BLOCK_BYTES + 1), 0);
	memset(f.payload.data, 0, CAP_BLOCK_BYTES + 1);
	ck_assert_int_eq(clr_decode(&f.decoder, clr_layout_find(RT, 143), 1, f.payload.data,
				    CAP_BLOCK_BYTES + 1, &f.event),
			 CLR_E_SHORT);
	ck_assert_int_eq(clr_decode(&f.decoder, clr_layout_find(RT, 143), 1, f.payload.data,
				    CAP_BLOCK_BYTES, &f.event),
			 0);
}
END_TEST

/* -- Spellings ----------------------------------------------------------------------------- */

static const struct {
	enum clr_flag_set set;
	uint32_t value;
	const char *text;
} flags[] = {
	{ CLR_FLAGS_MODULE, 0, "None" },
	{ CLR_FLAGS_MODULE, 0x28, "Manifest, ReadyToRunModule" },
	{ CLR_FLAGS_MODULE, 0x7f,
	  "DomainNeutral, Native, Dynamic, Manifest, IbcOptimized, ReadyToRunModule, "
	  "PartialReadyToRunModule" },
	{ CLR_FLAGS_MODULE, 0x88, "136" },
	{ CLR_FLAGS_MODULE, 0x80000000, "-2147483648" },
	{ CLR_FLAGS_ASSEMBLY, 0xa, "Dynamic, Collectible" },
	{ CLR_FLAGS_ASSEMBLY, 0x15, "DomainNeutral, Native, ReadyToRun" },
	{ CLR_FLAGS_APP_DOMAIN, 3, "Default, Executable" },
	{ CLR_FLAGS_APP_DOMAIN, 4, "Shared" },
	{ CLR_FLAGS_STARTUP, 1, "CONCURRENT_GC" },
	{ CLR_FLAGS_STARTUP, 8388611, "8388611" },
	{ CLR_FLAGS_STARTUP, 0x7f7117,
	  "CONCURRENT_GC, LOADER_OPTIMIZATION_SINGLE_DOMAIN, LOADER_OPTIMIZATION_MULTI_DOMAIN, "
	  "LOADER_SAFEMODE, LOADER_SETPREFERENCE, SERVER_GC, HOARD_GC_VM, "
	  "SINGLE_VERSION_HOSTING_INTERFACE, LEGACY_IMPERSONATION, DISABLE_COMMITTHREADSTACK, "
	  "ALWAYSFLOW_IMPERSONATION, TRIM_GC_COMMIT, ETW, SERVER_BUILD, ARM" },
	{ CLR_FLAGS_STARTUP_MODE, 2, "HostedClr" },
	{ CLR_FLAGS_STARTUP_MODE, 0x1d, "ManagedExe, IjwDll, ComActivated, Other" },
	{ CLR_FLAGS_SKU, 2, "CoreClr" },
	{ CLR_FLAGS_SKU, 5, "DesktopClr, Mono" },
	{ CLR_FLAGS_TIERED_SETTINGS, 0xf, "QuickJit, QuickJitForLoops, TieredPGO, ReadyToRun" },
	{ CLR_FLAGS_TIERED_SETTINGS, 0xfffffff0, "4294967280" },
	{ CLR_FLAGS_THREAD, 7, "GCSpecial, Finalizer, ThreadPoolWorker" },
};

START_TEST(test_flags)
{
	struct clr_text text;

	ck_assert_str_eq(clr_flags_text(&text, flags[_i].set, flags[_i].value), flags[_i].text);
}
END_TEST

START_TEST(test_spellings)
{
	static const struct clr_guid guid = { { 0xa5, 0xc6, 0x09, 0x6d, 0x7f, 0x34, 0xd3, 0xe9,
						0x1c, 0xc1, 0xea, 0x18, 0x24, 0xf1, 0x5a, 0xa5 } };
	static const char *const tiers[] = {
		"Unknown",
		"MinOptJitted",
		"Optimized",
		"QuickJitted",
		"OptimizedTier1",
		"OptimizedTier1OSR",
		"QuickJittedInstrumented",
		"OptimizedTier1Instrumented",
	};
	struct clr_text text;
	uint32_t i;

	ck_assert_str_eq(clr_guid_text(&text, &guid), "6d09c6a5-347f-e9d3-1cc1-ea1824f15aa5");
	for (i = 0; i < ARRAY_SIZE(tiers); i++) {
		ck_assert_str_eq(clr_tier_text(i << 7 | 0x8), tiers[i]);
		ck_assert_str_eq(clr_tier_text(i << 7 | 0x10000407), "Unknown");
		ck_assert_str_eq(clr_tier_text(i << 7 | 0xfffffc7f), tiers[i]);
	}
	ck_assert_str_eq(clr_tail_call_text(&text, 0), "OptimizedTailCall");
	ck_assert_str_eq(clr_tail_call_text(&text, 1), "RecursiveLoop");
	ck_assert_str_eq(clr_tail_call_text(&text, 2), "HelperAssistedTailCall");
	ck_assert_str_eq(clr_tail_call_text(&text, 3), "3");
	ck_assert_str_eq(clr_tail_call_text(&text, UINT32_MAX), "Unknown");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("clr");
	TCase *tc = tcase_create("clr");
	SRunner *runner;
	int n_failed;

	tcase_add_loop_test(tc, test_layout, 0, ARRAY_SIZE(layouts));
	tcase_add_loop_test(tc, test_short, 0, ARRAY_SIZE(layouts));
	tcase_add_loop_test(tc, test_newer, 0, ARRAY_SIZE(layouts));
	tcase_add_test(tc, test_not_ours);
	tcase_add_loop_test(tc, test_il_map, 0, ARRAY_SIZE(il_maps));
	tcase_add_test(tc, test_type_params);
	tcase_add_loop_test(tc, test_strings, 0, ARRAY_SIZE(texts));
	tcase_add_test(tc, test_longest_strings);
	tcase_add_test(tc, test_chars);
	tcase_add_test(tc, test_too_large);
	tcase_add_loop_test(tc, test_flags, 0, ARRAY_SIZE(flags));
	tcase_add_test(tc, test_spellings);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);

	runner = srunner_create(suite);
	srunner_run_all(runner, CK_NORMAL);
	n_failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
