package headrace.direct;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import java.util.Iterator;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Computes the filters and projections of one plan over small batches of Arrow, row by row and in
 * order. Compiled by Spark's own Janino, so without generics that have to be inferred, and without
 * lambdas. It takes batches over one socket, which Python opened; see direct.py for the protocol.
 */
public final class DirectEvaluator implements Runnable {
    private static final int COMPUTED = 0;
    private static final int REFUSED = 1;
    private static final int MOST_CAUSES = 20;

    private final SparkSession session;
    private final Object[] stages;
    private final BufferAllocator allocator;
    private final ArrowWriter writer;
    private SocketChannel channel;

    /** The row that is being computed, from 0. Read by other threads. */
    private volatile int row;

    public DirectEvaluator(SparkSession session, Object[] stages, StructType out) {
        this.session = session;
        this.stages = stages;
        this.allocator = new RootAllocator();
        this.writer = ArrowWriter.create(out, "UTC", false, false);
    }

    public int row() { return row; }

    /** Connects to Python's socket, and takes batches from it on a thread of its own. */
    public void connect(String path) throws IOException {
        channel = SocketChannel.open(UnixDomainSocketAddress.of(path));
        Thread thread = new Thread(this, "headrace direct");
        thread.setDaemon(true);
        thread.setContextClassLoader(Thread.currentThread().getContextClassLoader());
        thread.start();
    }

    public void run() {
        try {
            DataInputStream in = new DataInputStream(
                new BufferedInputStream(Channels.newInputStream(channel), 65536));
            DataOutputStream out = new DataOutputStream(
                new BufferedOutputStream(Channels.newOutputStream(channel), 65536));
            while (true) {
                byte[] given = new byte[in.readInt()];
                in.readFully(given);
                StringBuilder raised = new StringBuilder();
                byte[] made = new byte[0];
                int status = COMPUTED;
                try {
                    made = computed(given, raised);
                } catch (Throwable error) {
                    status = REFUSED;
                    raised.setLength(0);
                    describe(error, raised);
                }
                byte[] text = raised.toString().getBytes("UTF-8");
                out.writeInt(status);
                out.writeInt(made.length);
                out.writeInt(text.length);
                out.write(made);
                out.write(text);
                out.flush();
            }
        } catch (IOException ended) {
            // Python has closed its end: the plan, or the call, is over.
        } finally {
            close();
        }
    }

    private byte[] computed(byte[] given, StringBuilder raised) throws Exception {
        // Expressions may ask for settings while they are evaluated: those of this thread.
        SparkSession.setActiveSession(session);
        writer.reset();
        row = 0;
        ArrowStreamReader reader =
            new ArrowStreamReader(new ByteArrayInputStream(given), allocator);
        try {
            VectorSchemaRoot root = reader.getVectorSchemaRoot();
            ColumnVector[] columns = new ColumnVector[root.getFieldVectors().size()];
            for (int at = 0; at < columns.length; at++)
                columns[at] = new ArrowColumnVector((FieldVector) root.getFieldVectors().get(at));
            while (reader.loadNextBatch()) {
                Iterator rows = new ColumnarBatch(columns, root.getRowCount()).rowIterator();
                while (rows.hasNext()) {
                    InternalRow made = (InternalRow) rows.next();
                    try {
                        for (int at = 0; made != null && at < stages.length; at++) {
                            if (stages[at] instanceof BasePredicate)
                                made = ((BasePredicate) stages[at]).eval(made) ? made : null;
                            else
                                made = ((UnsafeProjection) stages[at]).apply(made);
                        }
                    } catch (Exception error) {
                        made = null;
                        raised.append(row).append('\t');
                        describe(error, raised);
                    }
                    // Not in the `try`: a row that is half written would shift all that follow.
                    if (made != null) writer.write(made);
                    row++;
                }
            }
            writer.finish();
        } finally {
            reader.close();
        }
        ByteArrayOutputStream made = new ByteArrayOutputStream(4096);
        ArrowStreamWriter stream = new ArrowStreamWriter(writer.root(), null, made);
        stream.start();
        stream.writeBatch();
        stream.end();
        return made.toByteArray();
    }

    /** Appends the causes, outermost first: class, condition, SQLSTATE. No text: it has values. */
    private static void describe(Throwable error, StringBuilder text) {
        for (int at = 0; error != null && at < MOST_CAUSES; at++) {
            if (at > 0) text.append('\t');
            text.append(error.getClass().getName()).append('|');
            if (error instanceof SparkThrowable) {
                String condition = ((SparkThrowable) error).getCondition();
                String state = ((SparkThrowable) error).getSqlState();
                text.append(condition == null ? "" : condition).append('|');
                text.append(state == null ? "" : state);
            } else {
                text.append('|');
            }
            error = error.getCause();
        }
        text.append('\n');
    }

    private void close() {
        try {
            channel.close();
        } catch (IOException ignored) {
            // It is closed.
        }
        writer.root().close();
        allocator.close();
    }
}
