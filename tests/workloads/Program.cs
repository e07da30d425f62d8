// load: the .NET program the tests look at. The first argument chooses what it does;
// README.md lists the programs and the commands. Every answer is one flushed line.
using System;
using System.Globalization;
using System.IO;
using System.Runtime.InteropServices;
using System.Text;

namespace Lab.Load
{
    public static class Program
    {
        public static int Main(string[] args)
        {
            CultureInfo.CurrentCulture = CultureInfo.InvariantCulture;
            string program = args.Length > 0 ? args[0] : "";
            switch (program)
            {
                case "hello":
                    Io.Say("hello");
                    return 0;
                case "idle":
                    Io.Say("ready " + Io.Pid());
                    Io.WaitForQuit();
                    return 0;
                case "serve":
                    Io.Say("ready " + Io.Pid());
                    return Serve.Loop();
                case "many" when args.Length == 2:
                    int count = int.Parse(args[1]);
                    Emitter.Many(count);
                    Io.Say("ready " + Io.Pid() + " " + count);
                    return Serve.Loop();
                case "churn" when args.Length == 3 || args.Length == 4 && args[3] == "wait":
                    return Churn.Run(double.Parse(args[1], CultureInfo.InvariantCulture), args[2], args.Length == 4);
                case "hot" when args.Length == 2:
                    Io.Say("ready " + Io.Pid());
                    Lab.Hot.Chain.Main(double.Parse(args[1], CultureInfo.InvariantCulture));
                    return 0;
                case "shares" when args.Length >= 3:
                    return Shares.Run(double.Parse(args[1], CultureInfo.InvariantCulture), args[2],
                                      args.AsSpan(3).ToArray());
                default:
                    Console.Error.WriteLine(
                        "usage: load hello | idle | serve | many N | churn SECONDS LOGFILE [wait] | hot SECONDS | " +
                        "shares SECONDS LOGFILE [wait] [tag=TEXT] [kinds=A,B,...]");
                    return 2;
            }
        }
    }

    /// <summary>Standard input and output, a line at a time, and the few libc calls.</summary>
    public static class Io
    {
        static readonly Stream In = Console.OpenStandardInput();
        static readonly Stream Out = Console.OpenStandardOutput();

        [DllImport("libc", EntryPoint = "getpid")]
        public static extern int Pid();

        [DllImport("libc", EntryPoint = "execv", SetLastError = true)]
        public static extern int Execv(string path, string[] argv);

        public static void Say(string line)
        {
            byte[] bytes = Encoding.UTF8.GetBytes(line + "\n");
            Out.Write(bytes, 0, bytes.Length);
            Out.Flush();
        }

        /// <summary>
        /// The next line, or null at the end. Reads byte by byte: what follows the line stays
        /// in the pipe for the program that "exec" may put in our place.
        /// </summary>
        public static string ReadLine()
        {
            var line = new MemoryStream();
            var one = new byte[1];
            while (In.Read(one, 0, 1) == 1)
            {
                if (one[0] == '\n')
                    return Encoding.UTF8.GetString(line.ToArray());
                line.WriteByte(one[0]);
            }
            return line.Length > 0 ? Encoding.UTF8.GetString(line.ToArray()) : null;
        }

        public static void WaitForQuit()
        {
            string line;
            while ((line = ReadLine()) != null && line.Trim() != "quit")
            {
            }
        }
    }
}
