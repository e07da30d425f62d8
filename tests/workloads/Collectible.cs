// Code that can be unloaded: this very assembly in a collectible AssemblyLoadContext, and
// RunAndCollect assemblies, by turns.
using System;
using System.IO;
using System.Reflection;
using System.Reflection.Emit;
using System.Runtime.CompilerServices;
using System.Runtime.Loader;

namespace Lab.Load
{
    public static class Collectible
    {
        static int serial;

        /// <summary>Makes, calls and lets go of N of them; they are gone after a "gc".</summary>
        public static string Run(int count)
        {
            // No file of our own in a single-file program: RunAndCollect only.
            string self = Path.Combine(AppContext.BaseDirectory, "load.dll");
            byte[] image = File.Exists(self) ? File.ReadAllBytes(self) : null;
            int contexts = 0, built = 0;
            for (int i = 0; i < count; i++, serial++)
            {
                if (image != null && serial % 2 == 0)
                {
                    InContext(image);
                    contexts++;
                }
                else
                {
                    InBuilder();
                    built++;
                }
            }
            return count + " contexts " + contexts + " built " + built;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static void InContext(byte[] image)
        {
            var context = new AssemblyLoadContext("guest-" + serial, isCollectible: true);
            using (var stream = new MemoryStream(image))
            {
                Type guest = context.LoadFromStream(stream).GetType("Lab.Guest.Visitor", throwOnError: true);
                guest.GetMethod("Visit").Invoke(null, new object[] { serial });
            }
            context.Unload();
        }

        /// <summary>Lab.Built.Asm0.Holder with Built_000000_0 to Built_000000_4.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        static void InBuilder()
        {
            string name = "Lab.Built.Asm" + serial;
            AssemblyBuilder assembly = AssemblyBuilder.DefineDynamicAssembly(
                new AssemblyName(name), AssemblyBuilderAccess.RunAndCollect);
            TypeBuilder type = assembly.DefineDynamicModule(name).DefineType(name + ".Holder", TypeAttributes.Public);
            for (int i = 0; i < 5; i++)
            {
                ILGenerator il = type.DefineMethod("Built_" + serial.ToString("D6") + "_" + i,
                    MethodAttributes.Public | MethodAttributes.Static,
                    typeof(int), new[] { typeof(int) }).GetILGenerator();
                il.Emit(OpCodes.Ldarg_0);
                for (int k = 0; k <= i * 3; k++)
                {
                    il.Emit(OpCodes.Ldc_I4, k + serial);
                    il.Emit(OpCodes.Xor);
                }
                il.Emit(OpCodes.Ret);
            }
            Type made = type.CreateTypeInfo();
            foreach (MethodInfo m in made.GetMethods(BindingFlags.Public | BindingFlags.Static))
                m.Invoke(null, new object[] { serial });
        }
    }
}

namespace Lab.Guest
{
    /// <summary>Called in collectible contexts only, each of which has its own copy.</summary>
    public static class Visitor
    {
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static int Visit(int n) => Look(n) + Listen(n) + Leave<string>(n) + Leave<int>(n);

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Look(int n) => n * 31 + 7;

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Listen(int n)
        {
            int sum = 0;
            for (int i = 0; i < 100; i++)
                sum += i ^ n;
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Leave<T>(int n) => typeof(T).Name.Length + n;
    }
}
