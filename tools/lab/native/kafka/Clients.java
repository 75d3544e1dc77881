import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer and a consumer of messages of 1 KB; latency counts from end to end.
 *
 * usage: Clients BOOTSTRAP PARTITIONS OUTSTANDING RATE
 *
 * RATE 0: closed loop, so many messages OUTSTANDING between producer and consumer. Otherwise RATE messages a second
 * arrive by a Poisson process, and latency counts from a message's arrival. Prints every second, until it is killed,
 * what native/ask.c prints.
 */
public final class Clients {
    private static final int BYTES = 1000;
    private static final int BUCKETS = 930;
    private static final String TOPIC = "lab-" + System.nanoTime();
    private static final double[] BOUNDS_MS = new double[BUCKETS];
    private static final AtomicLongArray COUNTS = new AtomicLongArray(BUCKETS);
    private static final AtomicLong EVENTS = new AtomicLong();
    private static final AtomicLong ERRORS = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        int partitions = Integer.parseInt(arguments[1]);
        Semaphore room = new Semaphore(Integer.parseInt(arguments[2]));
        double rate = Double.parseDouble(arguments[3]);
        for (int i = 0; i < BUCKETS; i++) {
            BOUNDS_MS[i] = 0.001 * Math.pow(1.02, i);
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            List<String> earlier =
                    admin.listTopics().names().get().stream().filter(name -> name.startsWith("lab-")).toList();
            admin.deleteTopics(earlier).all().get();
            admin.createTopics(List.of(new NewTopic(TOPIC, partitions, (short) 1))).all().get();
        }
        start(() -> consume(bootstrap, partitions, rate == 0 ? room : null));
        start(() -> produce(bootstrap, room, rate));
        long began = System.nanoTime();
        long last = began;
        long events = 0;
        long errors = 0;
        while (true) {
            Thread.sleep(Math.max(0, (last + 1_000_000_000L - System.nanoTime()) / 1_000_000));
            long now = System.nanoTime();
            long eventsNow = EVENTS.get();
            long errorsNow = ERRORS.get();
            StringBuilder text = new StringBuilder();
            text.append(String.format("second %.3f interval %.6f events %d errors %d%n", (now - began) / 1e9,
                    (now - last) / 1e9, eventsNow - events, errorsNow - errors));
            for (int i = 0; i < BUCKETS; i++) {
                if (COUNTS.get(i) > 0) {
                    text.append(String.format("%.6f | %d%n", BOUNDS_MS[i], COUNTS.get(i)));
                }
            }
            System.out.println(text + "end");
            System.out.flush();
            last = now;
            events = eventsNow;
            errors = errorsNow;
        }
    }

    private static void start(Runnable work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable error) {
                error.printStackTrace(System.out);
                System.out.flush();
                Runtime.getRuntime().halt(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void produce(String bootstrap, Semaphore room, double rate) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "1");
        settings.put("linger.ms", "1");
        settings.put("max.block.ms", "600000");
        Random random = new Random(1);
        double arrival = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            while (true) {
                if (rate == 0) {
                    room.acquireUninterruptibly();
                    arrival = System.nanoTime();
                } else {
                    arrival -= Math.log(1 - random.nextDouble()) / rate * 1e9;
                    long left = (long) arrival - System.nanoTime();
                    if (left > 0) {
                        java.util.concurrent.locks.LockSupport.parkNanos(left);
                    }
                }
                byte[] message = new byte[BYTES];
                java.nio.ByteBuffer.wrap(message).putLong((long) arrival);
                producer.send(new ProducerRecord<>(TOPIC, message), (where, error) -> {
                    if (error != null) {
                        ERRORS.incrementAndGet();
                    }
                });
            }
        }
    }

    private static void consume(String bootstrap, int partitions, Semaphore room) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.assign(java.util.stream.IntStream.range(0, partitions)
                    .mapToObj(number -> new TopicPartition(TOPIC, number)).toList());
            while (true) {
                int count = 0;
                for (ConsumerRecord<byte[], byte[]> message : consumer.poll(Duration.ofMillis(100))) {
                    long since = java.nio.ByteBuffer.wrap(message.value()).getLong();
                    double ms = (System.nanoTime() - since) / 1e6;
                    int bucket = ms <= BOUNDS_MS[0] ? 0 : (int) Math.ceil(Math.log(ms / BOUNDS_MS[0]) / Math.log(1.02));
                    COUNTS.incrementAndGet(Math.min(bucket, BUCKETS - 1));
                    count++;
                }
                EVENTS.addAndGet(count);
                if (room != null) {
                    room.release(count);
                }
            }
        }
    }
}
