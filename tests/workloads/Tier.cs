// One round through the kinds of code a real program has, often enough that the methods are
// compiled again: tier 0, on-stack replacement, tier 1, shared and unshared generics.
using System;
using System.Collections.Generic;
using System.Linq.Expressions;
using System.Runtime.CompilerServices;
using System.Text.RegularExpressions;
using System.Threading;
using System.Threading.Tasks;

namespace Lab.Load
{
    public static class Tier
    {
        public static long Run()
        {
            long sum = Osr(3000000);
            var regex = new Regex(@"^(\w+)-(\d{2,5})(?:[a-f]|xyz)+$", RegexOptions.Compiled);
            Func<int, int> tree = Tree();
            // A method is counted only after 100 ms without new tier-0 code, then needs 30 calls,
            // and with PGO passes through an instrumented version: several rounds.
            for (int round = 0; round < 6; round++)
            {
                for (int i = 0; i < 60; i++)
                {
                    sum += Plain(i);
                    sum += Box<int>.Pick(i, 1) + Box<long>.Pick(i, 2) + Box<(int, string)>.Pick(i, (3, "c"));
                    sum += Box<string>.Pick(i, "d") + Box<object>.Pick(i, regex) + Box<List<int>>.Pick(i, null);
                    sum += Swap<string>(i) + Swap<byte>(i);
                    sum += Lambdas(i) + Iterate(i) + Waits(i).GetAwaiter().GetResult();
                    sum += regex.IsMatch("word-" + (100 + i) + "abxyz") ? 1 : 0;
                    sum += tree(i);
                    sum += new Dog().Speak(i) + ((ISpeaker)new Cat()).Speak(i);
                }
                Thread.Sleep(150);
            }
            return sum;
        }

        /// <summary>Called once, with a loop so long that it is replaced while it runs.</summary>
        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Osr(int n)
        {
            long sum = 0;
            for (int i = 0; i < n; i++)
                sum = sum * 3 + (i ^ (sum >> 7));
            return sum & 1;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static long Plain(int i) => i * 7L % 13;

        static class Box<T>
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public static int Pick(int i, T value)
            {
                var list = new List<T>();
                for (int k = 0; k < i % 5 + 1; k++)
                    list.Add(value);
                return list.Count + typeof(T).Name.Length;
            }
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        static int Swap<T>(int i) => new T[i % 3 + 1].Length;

        static int Lambdas(int i)
        {
            Func<int, int> add = x => x + i;
            Func<int, int> twice = x => x * 2;
            return add(twice(i));
        }

        static int Iterate(int i)
        {
            int sum = 0;
            foreach (int k in Numbers(i % 7))
                sum += k;
            return sum;
        }

        static IEnumerable<int> Numbers(int n)
        {
            for (int i = 0; i < n; i++)
                yield return i * i;
        }

        static async Task<int> Waits(int i)
        {
            await Task.Yield();
            return await Inner(i) + 1;

            async Task<int> Inner(int k)
            {
                await Task.CompletedTask;
                return k & 3;
            }
        }

        /// <summary>x => x * x + 41, a DynamicMethod with a closure.</summary>
        static Func<int, int> Tree()
        {
            ParameterExpression x = Expression.Parameter(typeof(int), "x");
            return Expression.Lambda<Func<int, int>>(
                Expression.Add(Expression.Multiply(x, x), Expression.Constant(41)), "Lab_Tree", new[] { x }).Compile();
        }

        interface ISpeaker { int Speak(int i); }

        abstract class Animal : ISpeaker
        {
            public abstract int Speak(int i);
            int ISpeaker.Speak(int i) => Speak(i) + 1;
        }

        sealed class Dog : Animal
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public override int Speak(int i) => i + 2;
        }

        sealed class Cat : Animal
        {
            [MethodImpl(MethodImplOptions.NoInlining)]
            public override int Speak(int i) => i + 3;
        }
    }
}
