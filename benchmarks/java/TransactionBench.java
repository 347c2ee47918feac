import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.UUID;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Half + commit with the Java client's transactional producer; the protocol is that of benchmarks/clients/gate.py: each
 * line of standard input ("settle seconds") is answered with one JSON line. Arguments: name server, topic, threads,
 * bytes of a body.
 */
public final class TransactionBench {
    private final TransactionMQProducer producer = new TransactionMQProducer("outbox-bench-java");
    private final OperatingSystemMXBean system =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private final String topic;
    private final byte[] body;
    private final Worker[] workers;
    private volatile boolean running;
    private volatile boolean measuring;

    private TransactionBench(String[] arguments) throws Exception {
        topic = arguments[1];
        workers = new Worker[Integer.parseInt(arguments[2])];
        body = new byte[Integer.parseInt(arguments[3])];
        new Random().nextBytes(body);
        producer.setNamesrvAddr(arguments[0]);
        producer.setTransactionListener(new CommitAtOnce());
        producer.start();
    }

    public static void main(String[] arguments) throws Exception {
        TransactionBench bench = new TransactionBench(arguments);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.trim().split(" ");
            System.out.println(bench.run(Double.parseDouble(words[0]), Double.parseDouble(words[1])));
        }
        bench.producer.shutdown();
        System.exit(0);
    }

    private String run(double settle, double seconds) throws InterruptedException {
        running = true;
        for (int number = 0; number < workers.length; number++) {
            workers[number] = new Worker();
            workers[number].start();
        }
        Thread.sleep((long) (settle * 1000));
        long cpu = system.getProcessCpuTime();
        long began = System.nanoTime();
        measuring = true;
        Thread.sleep((long) (seconds * 1000));
        measuring = false;
        long took = System.nanoTime() - began;
        long spent = system.getProcessCpuTime() - cpu;
        running = false;
        for (Worker worker : workers) {
            worker.join();
        }
        return report(took / 1e9, spent / 1e9);
    }

    private String report(double seconds, double cpuSeconds) {
        long[] laps = Arrays.stream(workers).flatMapToLong(it -> Arrays.stream(it.laps, 0, it.count)).sorted().toArray();
        int failed = Arrays.stream(workers).mapToInt(it -> it.failed).sum();
        return String.format(
                Locale.ROOT,
                "{\"count\":%d,\"failed\":%d,\"seconds\":%.6f,\"cpu_seconds\":%.6f,\"p50_ms\":%.3f,\"p99_ms\":%.3f}",
                laps.length, failed, seconds, cpuSeconds, quantile(laps, 0.50), quantile(laps, 0.99));
    }

    private static double quantile(long[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) (share * (sorted.length - 1))] / 1e6;
    }

    private final class Worker extends Thread {
        private long[] laps = new long[1024];
        private int count;
        private int failed;

        @Override
        public void run() {
            while (running) {
                long began = System.nanoTime();
                boolean stored = send();
                if (!measuring) {
                    continue;
                }
                if (stored) {
                    record(System.nanoTime() - began);
                } else {
                    failed++;
                }
            }
        }

        private boolean send() {
            try {
                return producer.sendMessageInTransaction(message(), null).getSendStatus() == SendStatus.SEND_OK;
            } catch (Exception refused) {
                if (measuring) {
                    System.err.println(refused.getCause() == null ? refused : refused.getCause());
                }
                return false;
            }
        }

        private void record(long nanoseconds) {
            if (count == laps.length) {
                laps = Arrays.copyOf(laps, 2 * count);
            }
            laps[count++] = nanoseconds;
        }
    }

    private Message message() {
        String key = "order-" + UUID.randomUUID();
        Message message = new Message(topic, "paid", key, body);
        message.putUserProperty("outbox-origin", "bench/1");
        message.putUserProperty("outbox-id", "1");
        message.putUserProperty("outbox-key", key);
        message.putUserProperty("outbox-token", "0123456789abcdef");
        message.putUserProperty("outbox-mode", "transactional");
        return message;
    }

    private static final class CommitAtOnce implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
