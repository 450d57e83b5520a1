import com.aliyun.openservices.log.Client;
import com.aliyun.openservices.log.common.Consts;
import com.aliyun.openservices.log.common.Consts.CompressType;
import com.aliyun.openservices.log.common.Consts.CursorMode;
import com.aliyun.openservices.log.common.ConsumerGroup;
import com.aliyun.openservices.log.common.LogItem;
import com.aliyun.openservices.log.common.LogStore;
import com.aliyun.openservices.log.exception.LogException;
import com.aliyun.openservices.log.http.client.ClientConfiguration;
import com.aliyun.openservices.log.http.signer.SignVersion;
import com.aliyun.openservices.log.request.PullLogsRequest;
import com.aliyun.openservices.log.request.PutLogsRequest;
import com.aliyun.openservices.log.response.PullLogsResponse;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/** Calls of Aliyun's own Java client, through its proxy setting: Calling PORT KEY SECRET V1|V4. */
public class Calling {
    static final String P = "proj", S = "store", G = "g";

    interface Call {
        void make() throws LogException;
    }

    public static void main(String[] words) throws Exception {
        SignVersion version = SignVersion.valueOf(words[3]);
        Client client = client(words, words[2], version);
        client.CreateProject(P, "about");
        client.CreateLogStore(P, new LogStore(S, 7, 2));
        same(client.ListShard(P, S).GetShards().size(), 2);
        refused("LogStoreAlreadyExist", () -> client.CreateLogStore(P, new LogStore(S, 7, 2)));
        refused("SignatureNotMatch", () -> client(words, "guess", version).ListShard(P, S));

        for (CompressType packing : new CompressType[] {CompressType.LZ4, CompressType.ZSTD}) {
            LogItem item = new LogItem(1700000000);
            item.PushBack("组", "值 " + packing);
            List<LogItem> items = new ArrayList<>(Arrays.asList(item));
            PutLogsRequest put = new PutLogsRequest(P, S, "topic", "source", items, "0".repeat(32));
            put.setCompressType(packing);
            client.PutLogs(put);
            String from = client.GetCursor(P, S, 0, CursorMode.BEGIN).GetCursor();
            PullLogsRequest pull = new PullLogsRequest(P, S, 0, 1000, from);
            pull.setCompressType(packing);
            PullLogsResponse told = client.pullLogs(pull);
            int last = told.getCount() - 1;
            String value = told.getLogGroups().get(last).GetFastLogGroup().getLogs(0).getContents(0).getValue();
            same(value, "值 " + packing);
            same(told.getNextCursor(), client.GetCursor(P, S, 0, CursorMode.END).GetCursor());
        }

        client.CreateConsumerGroup(P, S, new ConsumerGroup(G, 10, false));
        same(client.ListConsumerGroup(P, S).GetConsumerGroups().get(0).getConsumerGroupName(), G);
        same(client.HeartBeat(P, S, G, "one", new ArrayList<Integer>()).getShards(), Arrays.asList(0, 1));
        same(client.getCheckpoint(P, S, G, 0).getCheckpoint().getCheckPoint(), "");
        String end = client.GetCursor(P, S, 0, CursorMode.END).GetCursor();
        refused("ConsumerNotExist", () -> client.UpdateCheckPoint(P, S, G, "nobody", 0, end));
        client.UpdateCheckPoint(P, S, G, "one", 0, end);
        same(client.getCheckpoint(P, S, G, 0).getCheckpoint().getCheckPoint(), end);
        same(client.SplitShard(P, S, 0, "40000000000000000000000000000000").GetShards().size(), 3);
        same(client.MergeShards(P, S, 2).GetShards().size(), 3);
        client.shutdown();
        System.out.println("done");
        System.exit(0);
    }

    static Client client(String[] words, String secret, SignVersion version) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setProxyHost("127.0.0.1");
        configuration.setProxyPort(Integer.parseInt(words[0]));
        configuration.setSignatureVersion(version);
        configuration.setRegion("cn-test");
        return new Client("loghub.test", words[1], secret, configuration);
    }

    static void same(Object found, Object wanted) {
        if (!found.equals(wanted)) throw new AssertionError(found + " is not " + wanted);
    }

    static void refused(String code, Call call) {
        String found = "nothing";
        try {
            call.make();
        } catch (LogException error) {
            found = error.GetErrorCode();
        }
        same(found, code);
    }
}
