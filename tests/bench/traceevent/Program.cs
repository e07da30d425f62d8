// The speed peer: parses a .nettrace file with TraceEvent, as a .NET tool that wants method
// names would. Usage: traceevent FILE [RUNS]
// The first parse, as a tool that reads one file has it, prints first_ms; each of the RUNS that
// follow in the warm process prints typed_ms:  {first|typed}_ms MS events N bytes N
using System;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using Microsoft.Diagnostics.Tracing;
using Microsoft.Diagnostics.Tracing.Parsers;
using Microsoft.Diagnostics.Tracing.Parsers.Clr;

namespace Lab.Bench
{
    /// <summary>What one parse saw; the sums keep the reads of the fields alive.</summary>
    sealed class Tally
    {
        public long Methods, Maps, Characters;
        public ulong Addresses;

        public long Events => Methods + Maps;

        public void Method(MethodLoadUnloadVerboseTraceData e)
        {
            Methods++;
            Characters += e.MethodNamespace.Length + e.MethodName.Length + e.MethodSignature.Length;
            Addresses += e.MethodStartAddress + (ulong)e.MethodSize;
        }

        public void Map(MethodILToNativeMapTraceData e)
        {
            Maps++;
            Addresses += (ulong)e.MethodID;
            for (int i = 0; i < e.CountOfMapEntries; i++)
                Addresses += (ulong)(e.ILOffset(i) + e.NativeOffset(i));
        }
    }

    static class Program
    {
        static int Main(string[] args)
        {
            CultureInfo.CurrentCulture = CultureInfo.InvariantCulture;
            if (args.Length < 1 || args.Length > 2)
            {
                Console.Error.WriteLine("usage: traceevent FILE [RUNS]");
                return 2;
            }
            byte[] bytes = File.ReadAllBytes(args[0]);
            int runs = args.Length > 1 ? int.Parse(args[1]) : 5;

            for (int i = 0; i <= runs; i++)
            {
                GC.Collect();
                var clock = Stopwatch.StartNew();
                Tally tally = Parse(bytes);
                double ms = clock.Elapsed.TotalMilliseconds;
                string which = i == 0 ? "first" : "typed";
                Console.WriteLine($"{which}_ms {ms:F1} events {tally.Events} bytes {bytes.Length}");
            }
            return 0;
        }

        static Tally Parse(byte[] bytes)
        {
            var tally = new Tally();
            using var source = new EventPipeEventSource(new MemoryStream(bytes, writable: false));

            ClrTraceEventParser live = source.Clr;
            live.MethodLoadVerbose += tally.Method;
            live.MethodUnloadVerbose += tally.Method;
            live.MethodILToNativeMap += tally.Map;

            var rundown = new ClrRundownTraceEventParser(source);
            rundown.MethodDCStartVerbose += tally.Method;
            rundown.MethodDCStopVerbose += tally.Method;
            rundown.MethodILToNativeMapDCStart += tally.Map;
            rundown.MethodILToNativeMapDCStop += tally.Map;

            source.Process();
            return tally;
        }
    }
}
