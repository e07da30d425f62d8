// "load hot": all the time is spent in Inner, always below the same managed stack.
using System.Diagnostics;
using System.Runtime.CompilerServices;

namespace Lab.Hot
{
    public static class Chain
    {
        // Every caller uses the result after the call: no tail call may drop its frame.

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Main(double seconds)
        {
            var clock = Stopwatch.StartNew();
            long sum = 0;
            while (clock.Elapsed.TotalSeconds < seconds)
                sum += Outer(sum);
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Outer(long seed)
        {
            long sum = 1;
            for (int i = 0; i < 4; i++)
                sum += Middle(seed + i) ^ i;
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Middle(long seed)
        {
            long sum = 2;
            for (int i = 0; i < 4; i++)
                sum += Inner(20000, seed + i) ^ i;
            return sum;
        }

        [MethodImpl(MethodImplOptions.NoInlining)]
        public static long Inner(int n, long seed)
        {
            long x = seed | 1;
            for (int i = 0; i < n; i++)
            {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
            }
            return x;
        }
    }
}
