import com.aliyun.openservices.log.common.FastLogGroup;
import com.aliyun.openservices.log.common.LogGroupData;
import com.aliyun.openservices.loghub.client.ClientWorker;
import com.aliyun.openservices.loghub.client.ILogHubCheckPointTracker;
import com.aliyun.openservices.loghub.client.config.LogHubConfig;
import com.aliyun.openservices.loghub.client.config.LogHubConfig.ConsumePosition;
import com.aliyun.openservices.loghub.client.exceptions.LogHubCheckPointException;
import com.aliyun.openservices.loghub.client.interfaces.ILogHubProcessor;
import java.util.Arrays;
import java.util.List;

/**
 * A consumer of Aliyun's own Java library: Consuming ENDPOINT GROUP NAME [in_order] [end].
 *
 * <p>Writes "shard nanoseconds text" for each log that it is given. A line on its standard input stops it in order.
 */
public class Consuming {
    static class Printing implements ILogHubProcessor {
        private int shard;

        public void initialize(int shard) {
            this.shard = shard;
        }

        public String process(List<LogGroupData> groups, ILogHubCheckPointTracker tracker) {
            StringBuilder lines = new StringBuilder();
            for (LogGroupData data : groups) {
                FastLogGroup group = data.GetFastLogGroup();
                for (int i = 0; i < group.getLogsCount(); i++) {
                    String text = group.getLogs(i).getContents(0).getValue();
                    lines.append(shard).append(' ').append(System.nanoTime()).append(' ');
                    lines.append(text).append('\n');
                }
            }
            // In one piece: shards are processed by several threads.
            System.out.print(lines);
            System.out.flush();
            try {
                tracker.saveCheckPoint(true);
            } catch (LogHubCheckPointException error) {
                System.out.println("not saved: " + error.getMessage());
            }
            return null;
        }

        public void shutdown(ILogHubCheckPointTracker tracker) {
            try {
                tracker.saveCheckPoint(true);
            } catch (LogHubCheckPointException error) {
                System.out.println("not saved: " + error.getMessage());
            }
        }
    }

    public static void main(String[] words) throws Exception {
        List<String> more = Arrays.asList(words);
        ConsumePosition where =
                more.contains("end") ? ConsumePosition.END_CURSOR : ConsumePosition.BEGIN_CURSOR;
        LogHubConfig config =
                new LogHubConfig(words[1], words[2], words[0], "proj", "store", "id", "secret", where);
        config.setHeartBeatIntervalMillis(1000);
        config.setTimeoutInSeconds(2);
        config.setFetchIntervalMillis(200);
        config.setConsumeInOrder(more.contains("in_order"));
        ClientWorker worker = new ClientWorker(Printing::new, config);
        Thread thread = new Thread(worker);
        thread.start();
        System.out.println("started");
        System.in.read();
        worker.shutdown();
        thread.join();
        System.out.println("stopped");
        System.exit(0);
    }
}
