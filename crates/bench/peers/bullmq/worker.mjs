// Drains jobs with one BullMQ worker and prints one line of JSON: how many, in
// how many seconds. The settings are those that suit BullMQ best: jobs are
// added in bulk before the clock starts, done jobs are not kept, connections
// to the sink stay open, and a first queue is drained unmeasured to warm up.
import { Queue, Worker } from "bullmq";
import { Redis } from "ioredis";
import { Pool } from "undici";

const [redisPort, sinkOrigin, jobs, atOnce, bodyBytes] = process.argv.slice(2);
const connection = { host: "127.0.0.1", port: Number(redisPort), maxRetriesPerRequest: null };
const pool = new Pool(sinkOrigin, { connections: Number(atOnce), pipelining: 1 });
const payload = "x".repeat(Number(bodyBytes));

async function fill(name, count) {
  const queue = new Queue(name, { connection });
  const opts = { removeOnComplete: true };
  for (let from = 0; from < count; from += 1000) {
    const size = Math.min(1000, count - from);
    const job = { name: "post", data: { payload }, opts };
    await queue.addBulk(Array.from({ length: size }, () => job));
  }
  await queue.close();
  await rewritten();
}

// What was added may have Redis rewrite its file in the background; that belongs to the adding.
async function rewritten() {
  const redis = new Redis(connection);
  while (/aof_rewrite_(in_progress|scheduled):1/.test(await redis.info("persistence"))) {
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  await redis.quit();
}

async function post(job) {
  const { statusCode, body } = await pool.request({
    method: "POST",
    path: "/",
    body: job.data.payload,
  });
  await body.dump();
  if (statusCode !== 200) throw new Error(`sink answered ${statusCode}`);
}

async function drain(name, count) {
  const worker = new Worker(name, post, {
    connection,
    concurrency: Number(atOnce),
    autorun: false,
  });
  await worker.waitUntilReady();
  const start = process.hrtime.bigint();
  await new Promise((resolve, reject) => {
    let done = 0;
    worker.on("completed", () => {
      done += 1;
      if (done % 10000 === 0) console.error(`bullmq: ${name}, ${done} of ${count} done`);
      if (done === count) resolve();
    });
    worker.on("failed", (_job, error) => reject(error));
    worker.on("error", reject);
    worker.run().catch(reject);
  });
  const seconds = Number(process.hrtime.bigint() - start) / 1e9;
  await worker.close();
  return seconds;
}

const count = Number(jobs);
const warmUp = Math.ceil(count / 10);
await fill("warm-up", warmUp);
await drain("warm-up", warmUp);
console.error(`bullmq: adding ${count} jobs`);
await fill("measured", count);
const seconds = await drain("measured", count);
console.log(JSON.stringify({ count, seconds }));
await pool.close();
process.exit(0);
