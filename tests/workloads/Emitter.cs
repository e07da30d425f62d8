// Generated methods: ordinary emitted ones ("many", "jit") and DynamicMethods ("dyn").
using System;
using System.Collections.Generic;
using System.Reflection;
using System.Reflection.Emit;

namespace Lab.Load
{
    public static class Emitter
    {
        const int PerType = 100;
        const int TypesPerGroup = 10;

        static int jitDone, batches, dynDone;
        static readonly List<Delegate> kept = new List<Delegate>();

        /// <summary>A small generator of our own, so that names and bodies are the same on every runtime.</summary>
        struct Dice
        {
            uint state;
            public Dice(int seed) { state = (uint)seed * 2654435761u + 12345u; }
            public int Next(int below)
            {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                return (int)(state % (uint)below);
            }
        }

        /// <summary>Lab.Many.Group000.Type0.Compute_000000 and so on, each called once.</summary>
        public static void Many(int count) =>
            Emit("Lab.Many", "Compute_", 0, count);

        /// <summary>Lab.Fresh1.Group000.Type0.Jit_000000 and so on; numbers go on over the batches.</summary>
        public static string Jit(int count)
        {
            int first = jitDone;
            jitDone += count;
            Emit("Lab.Fresh" + ++batches, "Jit_", first, count);
            return Range("Jit_", first, count);
        }

        static string Range(string prefix, int first, int count) =>
            count < 1 ? "0" : count + " " + Name(prefix, first) + " " + Name(prefix, first + count - 1);

        static string Name(string prefix, int number) => prefix + number.ToString("D6");

        static void Emit(string space, string prefix, int first, int count)
        {
            AssemblyBuilder assembly = null;
            ModuleBuilder module = null;
            for (int done = 0, t = 0; done < count; done += PerType, t++)
            {
                int group = t / TypesPerGroup;
                if (t % TypesPerGroup == 0)
                {
                    // An assembly per group: realistic, and quicker than one huge module.
                    string name = space + ".Group" + group.ToString("D3");
                    assembly = AssemblyBuilder.DefineDynamicAssembly(new AssemblyName(name), AssemblyBuilderAccess.Run);
                    module = assembly.DefineDynamicModule(name);
                }
                EmitType(module, space + ".Group" + group.ToString("D3") + ".Type" + t % TypesPerGroup,
                         prefix, first + done, Math.Min(PerType, count - done));
            }
        }

        /// <summary>One type of up to 100 methods, and RunAll, which calls each of them once.</summary>
        static void EmitType(ModuleBuilder module, string typeName, string prefix, int first, int count)
        {
            TypeBuilder type = module.DefineType(typeName,
                TypeAttributes.Public | TypeAttributes.Abstract | TypeAttributes.Sealed);
            MethodBuilder all = type.DefineMethod("RunAll", MethodAttributes.Public | MethodAttributes.Static,
                typeof(void), Type.EmptyTypes);
            ILGenerator run = all.GetILGenerator();
            LocalBuilder cell = run.DeclareLocal(typeof(int));
            for (int i = first; i < first + count; i++)
            {
                Shape shape = Shapes[i % Shapes.Length];
                MethodBuilder m = type.DefineMethod(Name(prefix, i), MethodAttributes.Public | MethodAttributes.Static,
                    shape.Result, shape.Parameters);
                Body(m.GetILGenerator(), shape, i);
                foreach (Type p in shape.Parameters)
                    PushArgument(run, p, i, cell);
                run.Emit(OpCodes.Call, m);
                if (shape.Result != typeof(void))
                    run.Emit(OpCodes.Pop);
            }
            run.Emit(OpCodes.Ret);
            Type made = type.CreateTypeInfo();
            ((Action)made.GetMethod("RunAll").CreateDelegate(typeof(Action)))();
        }

        /// <summary>Dyn_000000 and so on: created, called once and kept until Drop.</summary>
        public static string Dyn(int count)
        {
            int first = dynDone;
            for (int i = 0; i < count; i++)
            {
                var m = new DynamicMethod(Name("Dyn_", dynDone), typeof(int), new[] { typeof(int) });
                Body(m.GetILGenerator(), Shapes[0], dynDone++);
                var call = (Func<int, int>)m.CreateDelegate(typeof(Func<int, int>));
                call(i);
                kept.Add(call);
            }
            return Range("Dyn_", first, count);
        }

        public static int Drop()
        {
            int n = kept.Count;
            kept.Clear();
            kept.TrimExcess();
            return n;
        }

        sealed class Shape
        {
            public Type Result;
            public Type[] Parameters;
            public Shape(Type result, params Type[] parameters) { Result = result; Parameters = parameters; }
        }

        static readonly Shape[] Shapes =
        {
            new Shape(typeof(int), typeof(int)),
            new Shape(typeof(int), typeof(int), typeof(int)),
            new Shape(typeof(long), typeof(long), typeof(int)),
            new Shape(typeof(int), typeof(string), typeof(int)),
            new Shape(typeof(double), typeof(double)),
            new Shape(typeof(int), typeof(int[])),
            new Shape(typeof(void), typeof(int).MakeByRefType()),
            new Shape(typeof(string), typeof(string), typeof(List<string>), typeof(Dictionary<int, string[]>)),
        };

        static readonly MethodInfo StringLength = typeof(string).GetProperty("Length").GetGetMethod();

        static void PushArgument(ILGenerator il, Type type, int value, LocalBuilder cell)
        {
            if (type == typeof(int)) il.Emit(OpCodes.Ldc_I4, value);
            else if (type == typeof(long)) il.Emit(OpCodes.Ldc_I8, (long)value);
            else if (type == typeof(double)) il.Emit(OpCodes.Ldc_R8, (double)value);
            else if (type == typeof(string)) il.Emit(OpCodes.Ldstr, "text");
            else if (type.IsByRef) il.Emit(OpCodes.Ldloca, cell);
            else if (type.IsArray)
            {
                il.Emit(OpCodes.Ldc_I4_3);
                il.Emit(OpCodes.Newarr, typeof(int));
            }
            else il.Emit(OpCodes.Ldnull);
        }

        /// <summary>Some arithmetic on the first parameter; the amount depends on the number.</summary>
        static void Body(ILGenerator il, Shape shape, int number)
        {
            var dice = new Dice(number);
            LocalBuilder x = il.DeclareLocal(typeof(int));
            Type from = shape.Parameters[0];
            il.Emit(OpCodes.Ldarg_0);
            if (from == typeof(string)) il.Emit(OpCodes.Callvirt, StringLength);
            else if (from.IsArray) il.Emit(OpCodes.Ldlen);
            else if (from.IsByRef) il.Emit(OpCodes.Ldind_I4);
            il.Emit(OpCodes.Conv_I4);
            il.Emit(OpCodes.Stloc, x);

            // Mostly short; one in 16 is ten times as long.
            int steps = 1 + dice.Next(12);
            if (dice.Next(16) == 0)
                steps *= 10;
            for (int i = 0; i < steps; i++)
                Step(il, x, ref dice);

            if (shape.Result == typeof(string))
            {
                il.Emit(OpCodes.Ldarg_0);
            }
            else if (from.IsByRef)
            {
                il.Emit(OpCodes.Ldarg_0);
                il.Emit(OpCodes.Ldloc, x);
                il.Emit(OpCodes.Stind_I4);
            }
            else
            {
                il.Emit(OpCodes.Ldloc, x);
                if (shape.Result == typeof(long)) il.Emit(OpCodes.Conv_I8);
                if (shape.Result == typeof(double)) il.Emit(OpCodes.Conv_R8);
            }
            il.Emit(OpCodes.Ret);
        }

        static readonly OpCode[] Operations = { OpCodes.Add, OpCodes.Mul, OpCodes.Xor, OpCodes.Sub, OpCodes.Or };

        static void Step(ILGenerator il, LocalBuilder x, ref Dice dice)
        {
            int constant = 1 + dice.Next(1000);
            Label skip = default;
            bool branch = dice.Next(4) == 0;
            if (branch)
            {
                skip = il.DefineLabel();
                il.Emit(OpCodes.Ldloc, x);
                il.Emit(OpCodes.Ldc_I4, constant);
                il.Emit(OpCodes.Beq, skip);
            }
            il.Emit(OpCodes.Ldloc, x);
            il.Emit(OpCodes.Ldc_I4, constant);
            il.Emit(Operations[dice.Next(Operations.Length)]);
            il.Emit(OpCodes.Stloc, x);
            if (branch)
                il.MarkLabel(skip);
        }
    }
}
