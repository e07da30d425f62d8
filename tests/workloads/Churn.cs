// "load churn": makes, calls and drops generated methods at full speed, so that one address
// belongs to many methods in turn, and logs for itself which method ran where and when.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;

namespace Lab.Load
{
    public static unsafe class Churn
    {
        /// <summary>As in probe.c.</summary>
        struct Record
        {
#pragma warning disable 649 // filled by probe.c
            public ulong Addr, TimeNs, Id;
#pragma warning restore 649
        }

        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        delegate int InitCall(ulong count);
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        delegate ulong CountCall();
        [UnmanagedFunctionPointer(CallingConvention.Cdecl)]
        delegate IntPtr RecordsCall();

        const ulong Capacity = 16 << 20;
        const int InAssembly = 1 << 30; // in an id: a method of a collectible assembly

        static IntPtr probe;
        static int serial;

        /// <summary>Names are never used twice: the number is one for all methods made.</summary>
        static string Name(int id) =>
            ((id & InAssembly) != 0 ? "Coll_" : "Drop_") + (id & ~InAssembly).ToString("D7");

        public static int Run(double seconds, string logFile, bool wait)
        {
            IntPtr library = NativeLibrary.Load(Path.Combine(AppContext.BaseDirectory, "libprobe.so"));
            T Call<T>(string name) =>
                Marshal.GetDelegateForFunctionPointer<T>(NativeLibrary.GetExport(library, name));
            if (Call<InitCall>("probe_init")(Capacity) != 0)
                throw new OutOfMemoryException("probe_init");
            probe = NativeLibrary.GetExport(library, "probe");

            Io.Say("ready " + Io.Pid());
            if (wait)
                Io.ReadLine();
            var clock = Stopwatch.StartNew();
            // Some methods live on for a while and are called again: lives of very different length.
            var living = new Action[256];
            var random = new Random(1);
            for (int round = 1; clock.Elapsed.TotalSeconds < seconds; round++)
            {
                for (int i = 0; i < 64; i++)
                {
                    Action made = MakeDynamic(random.Next(1, 5), random.Next(60));
                    made();
                    if (random.Next(4) == 0)
                        living[random.Next(living.Length)] = made;
                    living[random.Next(living.Length)]?.Invoke();
                }
                MakeAssembly(random);
                if (round % 16 == 0)
                {
                    GC.Collect();
                    GC.WaitForPendingFinalizers();
                }
            }

            ulong count = Call<CountCall>("probe_count")();
            Write(logFile, (Record*)Call<RecordsCall>("probe_records")(), count);
            Io.Say("done " + count);
            Io.WaitForQuit();
            return 0;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static Action MakeDynamic(int probes, int filler)
        {
            int id = serial++;
            var method = new DynamicMethod(Name(id), typeof(void), Type.EmptyTypes);
            Body(method.GetILGenerator(), id, probes, filler);
            return (Action)method.CreateDelegate(typeof(Action));
        }

        /// <summary>A collectible assembly with one type of one to eight methods, each called twice.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void MakeAssembly(Random random)
        {
            string space = "Lab.Churn.Asm" + serial;
            TypeBuilder type = AssemblyBuilder
                .DefineDynamicAssembly(new AssemblyName(space), AssemblyBuilderAccess.RunAndCollect)
                .DefineDynamicModule(space).DefineType(space + ".Holder", TypeAttributes.Public);
            var names = new List<string>();
            for (int n = random.Next(1, 9); n > 0; n--)
            {
                int id = InAssembly | serial++;
                names.Add(Name(id));
                MethodBuilder method = type.DefineMethod(Name(id), MethodAttributes.Public | MethodAttributes.Static,
                    typeof(void), Type.EmptyTypes);
                Body(method.GetILGenerator(), id, random.Next(1, 5), random.Next(60));
            }
            Type made = type.CreateTypeInfo();
            foreach (string name in names)
            {
                var call = (Action)made.GetMethod(name).CreateDelegate(typeof(Action));
                call();
                call();
            }
        }

        /// <summary>
        /// Calls probe(id) a few times, with arithmetic between, so that sizes and call sites differ.
        /// The JIT compiles the unmanaged call in place, without a stub between: the return address
        /// lies in this method (measured on 3.1 to 11 against the runtime's own events).
        /// </summary>
        static void Body(ILGenerator il, int id, int probes, int filler)
        {
            LocalBuilder x = il.DeclareLocal(typeof(int));
            for (int p = 0; p < probes; p++)
            {
                for (int i = 0; i < filler / probes; i++)
                {
                    il.Emit(OpCodes.Ldloc, x);
                    il.Emit(OpCodes.Ldc_I4, id + i);
                    il.Emit((i & 1) == 0 ? OpCodes.Mul : OpCodes.Xor);
                    il.Emit(OpCodes.Stloc, x);
                }
                il.Emit(OpCodes.Ldc_I4, id);
                il.Emit(OpCodes.Ldc_I8, probe.ToInt64());
                il.Emit(OpCodes.Conv_I);
                il.EmitCalli(OpCodes.Calli, CallingConvention.Cdecl, typeof(void), new[] { typeof(int) });
            }
            il.Emit(OpCodes.Ret);
        }

        static void Write(string file, Record* records, ulong count)
        {
            using (var log = new StreamWriter(file))
            {
                log.NewLine = "\n";
                for (ulong i = 0; i < count; i++)
                    log.WriteLine(records[i].Addr.ToString("x") + "\t" + records[i].TimeNs + "\t" +
                                  Name((int)records[i].Id));
            }
        }
    }
}
