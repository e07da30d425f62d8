// The command loop of "load serve" and "load many".
using System;
using System.Collections;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Runtime.CompilerServices;
using System.Runtime.InteropServices;
using System.Threading;

namespace Lab.Load
{
    public static class Serve
    {
        public static int Loop()
        {
            string line;
            while ((line = Io.ReadLine()) != null)
            {
                string[] words = line.Split(new[] { ' ', '\t', '\r' }, StringSplitOptions.RemoveEmptyEntries);
                if (words.Length == 0)
                    continue;
                if (words[0] == "quit")
                    break;
                string answer;
                try
                {
                    answer = Answer(words);
                }
                catch (Exception e)
                {
                    // e.g. Reflection.Emit under native AOT, or a missing argument.
                    answer = "error " + words[0] + ": " + e.GetType().Name + ": " + e.Message.Replace('\n', ' ');
                }
                Io.Say(answer);
            }
            return 0;
        }

        static string Answer(string[] words)
        {
            int Number(int i) => int.Parse(words[i]);
            switch (words[0])
            {
                case "jit":
                    return "ok jit " + Emitter.Jit(Number(1));
                case "dyn":
                    return "ok dyn " + Emitter.Dyn(Number(1));
                case "drop":
                    return "ok drop " + Emitter.Drop();
                case "alc":
                    return "ok alc " + Collectible.Run(Number(1));
                case "tier":
                    return "ok tier " + Tier.Run();
                case "gc":
                    FullCollect();
                    return "ok gc";
                case "sleep":
                    Thread.Sleep(Number(1));
                    return "ok sleep";
                case "spin":
                    return "ok spin " + Spin(Number(1), Number(2));
                case "exec":
                    return Exec(words.Skip(1).ToArray());
                case "env":
                    return "ok env " + Environs();
                default:
                    return "error unknown command " + words[0];
            }
        }

        public static void FullCollect()
        {
            for (int i = 0; i < 3; i++)
            {
                GC.Collect(GC.MaxGeneration, GCCollectionMode.Forced, blocking: true, compacting: true);
                GC.WaitForPendingFinalizers();
            }
        }

        static long Spin(int threads, int ms)
        {
            long rounds = 0;
            var all = new List<Thread>();
            for (int i = 0; i < threads; i++)
            {
                var t = new Thread(() => Interlocked.Add(ref rounds, Busy(ms))) { Name = "spin-" + i };
                t.Start();
                all.Add(t);
            }
            foreach (Thread t in all)
                t.Join();
            return rounds;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Busy(int ms)
        {
            var clock = Stopwatch.StartNew();
            long rounds = 0;
            while (clock.ElapsedMilliseconds < ms)
                rounds += Lab.Hot.Chain.Inner(20000, rounds) == 0 ? 2 : 1;
            return rounds;
        }

        /// <summary>Puts another program in our place. Answers before, as it does not come back.</summary>
        static string Exec(string[] command)
        {
            if (command.Length == 0 || !System.IO.File.Exists(command[0]))
                return "error exec: no such program";
            Io.Say("ok exec");
            Io.Execv(command[0], command.Append(null).ToArray());
            return "error exec: errno " + Marshal.GetLastWin32Error();
        }

        /// <summary>What runtime this is and the variables that change its behaviour.</summary>
        static string Environs()
        {
            IEnumerable<string> set =
                from DictionaryEntry e in Environment.GetEnvironmentVariables()
                let name = (string)e.Key
                where name == "TMPDIR" || name.StartsWith("DOTNET_") || name.StartsWith("COMPlus_")
                orderby name
                select name + "=" + e.Value;
            return string.Join("\t", set.Prepend("runtime=" + RuntimeInformation.FrameworkDescription));
        }
    }
}
