// "load shares": spends known shares of its time in known methods, a few milliseconds in each by
// turns, and logs for itself which one ran when. A sample between a round's two times with its
// address in managed code belongs to the round's method: its loop calls nothing.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.IO;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;
using System.Threading;

namespace Lab.Load
{
    public static class Shares
    {
        // Of the rounds of one turn, in milliseconds.
        const double Long = 6, Short = 3;
        const int FewCalls = 20; // below the 30 calls after which a method is compiled again

        struct Round
        {
            public long Begin, End; // CLOCK_MONOTONIC, ns: what Stopwatch counts on Linux
            public string Kind, Name;
        }

        static readonly List<Round> log = new List<Round>(65536);
        static readonly Dictionary<string, double> speed = new Dictionary<string, double>();
        static string tag = "a";
        static int serial;
        static long sink;

        /// <summary>options: wait, tag=TEXT, kinds=A,B,...</summary>
        public static int Run(double seconds, string logFile, string[] options)
        {
            bool wait = false;
            string kinds = "ordinary,generic,dynamic,once,few,framework,reused,collectible,grow";
            foreach (string option in options)
            {
                if (option == "wait")
                    wait = true;
                else if (option.StartsWith("tag="))
                    tag = option.Substring(4);
                else if (option.StartsWith("kinds="))
                    kinds = option.Substring(6);
                else
                    throw new ArgumentException(option);
            }
            var on = new HashSet<string>(kinds.Split(','));
            // One string, so long that hashing it once is a round; hashing is precompiled framework code.
            string text = on.Contains("framework") ? new string('x', 3 << 20) : "";
            Func<long, long, long> hash = (n, seed) => text.GetHashCode();
            Func<long, long, long> kept = on.Contains("dynamic") ? MakeDynamic("Kept_" + tag, 20) : null;

            Io.Say("ready " + Io.Pid());
            if (wait)
                Io.ReadLine();
            var clock = Stopwatch.StartNew();
            bool untiered = Environment.GetEnvironmentVariable("DOTNET_TieredCompilation") == "0";
            bool stop = false;
            var reader = new Thread(() =>
            {
                for (string line; (line = Io.ReadLine()) != null && line != "quit";)
                {
                    if (line == "stop")
                        Volatile.Write(ref stop, true);
                }
            }) { IsBackground = true };
            reader.Start();
            var grower = new Thread(() => Grow(() => Volatile.Read(ref stop))) { IsBackground = true };
            if (on.Contains("grow"))
                grower.Start();
            if (on.Contains("once"))
                Once();
            for (int turn = 0; clock.Elapsed.TotalSeconds < seconds && !Volatile.Read(ref stop); turn++)
            {
                if (on.Contains("ordinary"))
                {
                    Time("ordinary", "Lab.Shares.Leaf::Ordinary", Long, Lab.Shares.Leaf.Ordinary);
                    for (int i = 0; i < 40; i++) // calls, not time, bring it to tier 1
                        sink += Lab.Shares.Leaf.Ordinary(1, i);
                }
                if (on.Contains("generic"))
                {
                    Time("generic", "Lab.Shares.Box`1[System.Int64]::Spin", Short, Lab.Shares.Box<long>.Spin);
                    Time("generic", "Lab.Shares.Box`1[System.__Canon]::Spin", Short, Lab.Shares.Box<string>.Spin);
                    Time("generic", "Lab.Shares.Leaf::Generic", Short, Lab.Shares.Leaf.Generic<string>);
                }
                if (on.Contains("dynamic"))
                    Time("dynamic", "dynamicClass::Kept_" + tag, Short, kept);
                if (on.Contains("few") && turn < FewCalls)
                    Time("few", "Lab.Shares.Leaf::Few", Long, Lab.Shares.Leaf.Few);
                if (on.Contains("framework") && (turn < FewCalls || untiered))
                    Time("framework", "System.Marvin::ComputeHash32", Long, hash);
                if (on.Contains("reused"))
                    Reuse();
                if (on.Contains("collectible"))
                    Collect(turn);
            }
            Volatile.Write(ref stop, true);

            using (var file = new StreamWriter(logFile) { NewLine = "\n" })
            {
                foreach (Round r in log)
                    file.WriteLine(Io.Pid() + "\t" + r.Begin + "\t" + r.End + "\t" + r.Kind + "\t" + r.Name);
            }
            Io.Say("done " + log.Count);
            reader.Join();
            return (int)(sink & 0);
        }

        /// <summary>
        /// One round: the loop is made as long as ms takes, judged by the last round of its kind. A first call
        /// outside the round compiles it.
        /// </summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Time(string kind, string name, double ms, Func<long, long, long> leaf, bool warm = true)
        {
            // Of generated methods each has a name of its own, and all have the speed of their kind.
            string key = kind == "reused" || kind == "collectible" ? kind : name;
            if (!speed.TryGetValue(key, out double perMs))
            {
                perMs = 100000;
                if (warm && kind != "framework" && kind != "few")
                    sink += leaf(1000, 1);
            }
            long n = (long)(perMs * ms);
            if (key == kind)
                sink += leaf(1, 1);
            var round = new Round { Kind = kind, Name = name, Begin = Stopwatch.GetTimestamp() };
            sink += leaf(n, serial);
            round.End = Stopwatch.GetTimestamp();
            log.Add(round);
            double took = Math.Max((round.End - round.Begin) / 1e6, 0.01);
            // Halfway and bounded: a round in which the thread had to wait says little.
            speed[key] = Math.Min(Math.Max((perMs + n / took) / 2, 20000), 2000000);
        }

        /// <summary>A loop entered once, long enough to be replaced while it runs.</summary>
        static void Once()
        {
            speed["Lab.Shares.Leaf::Once"] = 400000;
            Time("once", "Lab.Shares.Leaf::Once", 100, Lab.Shares.Leaf.Once, warm: false);
        }

        /// <summary>
        /// Three methods, each called for a round and dropped; then they are collected, so that the next
        /// turn's get their addresses. Sizes differ a little: starts stay, ends do not.
        /// </summary>
        static void Reuse()
        {
            for (int i = 0; i < 3; i++)
            {
                string name = "Reused_" + tag + "_" + serial.ToString("D6");
                OneDynamic(name, 20 + serial % 5);
                serial++;
            }
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void OneDynamic(string name, int filler) =>
            Time("reused", "dynamicClass::" + name, Short, MakeDynamic(name, filler));

        static Func<long, long, long> MakeDynamic(string name, int filler)
        {
            var method = new DynamicMethod(name, typeof(long), new[] { typeof(long), typeof(long) });
            Body(method.GetILGenerator(), filler);
            return (Func<long, long, long>)method.CreateDelegate(typeof(Func<long, long, long>));
        }

        /// <summary>By turns our own assembly in a collectible context and a RunAndCollect one.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void Collect(int turn)
        {
            // No file of our own in a single-file program.
            string self = Path.Combine(AppContext.BaseDirectory, "load.dll");
            if (turn % 2 == 0 && File.Exists(self))
            {
                var context = new AssemblyLoadContext("shares-" + turn, isCollectible: true);
                using (var stream = new MemoryStream(File.ReadAllBytes(self)))
                {
                    Type guest = context.LoadFromStream(stream).GetType("Lab.Shares.Guest", throwOnError: true);
                    Time("collectible", "Lab.Shares.Guest::Spin", Short,
                         (Func<long, long, long>)guest.GetMethod("Spin").CreateDelegate(typeof(Func<long, long, long>)));
                }
                context.Unload();
                return;
            }
            string space = "Lab.Built.Shares_" + tag + "_" + serial++;
            TypeBuilder type = AssemblyBuilder
                .DefineDynamicAssembly(new AssemblyName(space), AssemblyBuilderAccess.RunAndCollect)
                .DefineDynamicModule(space).DefineType(space + ".Holder", TypeAttributes.Public);
            Body(type.DefineMethod("Spin", MethodAttributes.Public | MethodAttributes.Static, typeof(long),
                                   new[] { typeof(long), typeof(long) }).GetILGenerator(), serial % 30);
            Time("collectible", space + ".Holder::Spin", Short,
                 (Func<long, long, long>)type.CreateTypeInfo().GetMethod("Spin")
                     .CreateDelegate(typeof(Func<long, long, long>)));
        }

        /// <summary>(n, seed) => a loop of n rounds of xorshift, after some arithmetic that only takes room.</summary>
        static void Body(ILGenerator il, int filler)
        {
            LocalBuilder x = il.DeclareLocal(typeof(long));
            Label top = il.DefineLabel(), test = il.DefineLabel();
            il.Emit(OpCodes.Ldarg_1);
            il.Emit(OpCodes.Ldc_I8, 1L);
            il.Emit(OpCodes.Or);
            il.Emit(OpCodes.Stloc, x);
            for (int i = 0; i < filler; i++)
            {
                il.Emit(OpCodes.Ldloc, x);
                il.Emit(OpCodes.Ldarg_0);
                il.Emit((i & 1) == 0 ? OpCodes.Mul : OpCodes.Xor);
                il.Emit(OpCodes.Stloc, x);
            }
            il.Emit(OpCodes.Br, test);
            il.MarkLabel(top);
            foreach (int shift in new[] { 13, -7, 17 })
            {
                il.Emit(OpCodes.Ldloc, x);
                il.Emit(OpCodes.Ldloc, x);
                il.Emit(OpCodes.Ldc_I4, Math.Abs(shift));
                il.Emit(shift > 0 ? OpCodes.Shl : OpCodes.Shr);
                il.Emit(OpCodes.Xor);
                il.Emit(OpCodes.Stloc, x);
            }
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Ldc_I8, 1L);
            il.Emit(OpCodes.Sub);
            il.Emit(OpCodes.Starg_S, (byte)0);
            il.MarkLabel(test);
            il.Emit(OpCodes.Ldarg_0);
            il.Emit(OpCodes.Ldc_I8, 0L);
            il.Emit(OpCodes.Bgt, top);
            il.Emit(OpCodes.Ldloc, x);
            il.Emit(OpCodes.Ret);
        }

        /// <summary>Compiles in short bursts, on a thread of its own: the code heap grows, in the pauses hot methods get tier 1.</summary>
        static void Grow(Func<bool> stop)
        {
            while (!stop())
            {
                for (int i = 0; i < 3; i++)
                {
                    Emitter.Jit(40);
                    Thread.Sleep(10);
                }
                Thread.Sleep(300);
            }
        }
    }
}

namespace Lab.Shares
{
    /// <summary>The loops. Each stands here in full: a call would make the called method the one that runs.</summary>
    public static class Leaf
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Ordinary(long n, long seed)
        {
            long x = seed | 1;
            for (; n > 0; n--)
            {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            return x;
        }

        /// <summary>Never called often: stays as it was first compiled, precompiled in an r2r build.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Few(long n, long seed)
        {
            long x = seed | 3;
            for (; n > 0; n--)
            {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Once(long n, long seed)
        {
            long x = seed | 5;
            for (; n > 0; n--)
            {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            return x;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Generic<T>(long n, long seed)
        {
            long x = seed | 7;
            for (; n > 0; n--)
            {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            return x + (typeof(T) == typeof(int) ? 1 : 0);
        }
    }

    public static class Box<T>
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Spin(long n, long seed)
        {
            long x = seed | 9;
            for (; n > 0; n--)
            {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            return x + (typeof(T) == typeof(int) ? 1 : 0);
        }
    }

    /// <summary>Called in collectible contexts only.</summary>
    public static class Guest
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Spin(long n, long seed)
        {
            long x = seed | 11;
            for (; n > 0; n--)
            {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            return x;
        }
    }
}
