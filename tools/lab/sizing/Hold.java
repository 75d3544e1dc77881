import java.io.FileWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/** Holds MIB megabytes of live data, replaces some of it all the time, and tells its work in the file COUNTER. */
public class Hold {
    public static void main(String[] words) throws Exception {
        int mib = Integer.parseInt(words[0]);
        byte[][] live = new byte[mib][];
        for (int i = 0; i < mib; i++) {
            live[i] = new byte[1 << 20];
        }
        long work = 0;
        long sum = 0;
        long told = System.nanoTime();
        for (int at = 0; ; at = (at + 1) % mib) {
            byte[] fresh = new byte[1 << 20];
            byte[] old = live[at];
            for (int place = 0; place < old.length; place += 4096) {
                sum += old[place];
                fresh[place] = (byte) sum;
            }
            live[at] = fresh;
            work++;
            if (System.nanoTime() - told > 200_000_000L) {
                told = System.nanoTime();
                try (FileWriter file = new FileWriter(words[1] + ".new")) {
                    file.write("work_total = " + work + "\n");
                }
                Files.move(Path.of(words[1] + ".new"), Path.of(words[1]), StandardCopyOption.ATOMIC_MOVE);
            }
            if (work % 16 == 0) {
                Thread.sleep(5);
            }
        }
    }
}
