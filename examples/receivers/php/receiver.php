<?php
// A receiver of Entrega's webhooks. Needs PHP 8.1 and nothing else. A request keeps the event, a worker handles it:
//
//   WEBHOOK_SECRET=whsec_… INBOX=/var/lib/inbox php -S 127.0.0.1:8000 receiver.php
//   INBOX=/var/lib/inbox php receiver.php work
//
// WEBHOOK_SECRET may hold several secrets with spaces between them, for the time of a rotation. An event whose
// predecessor is missing is held back for GAP_WAIT_MS (default: ten minutes), then handled without it. A database serves
// as well as the folder: a table with `eventId` as its unique key, written before the sender is answered.

declare(strict_types=1);

const BODY_BYTES_MAX = 1 << 20;
const LOOK_EVERY_US = 100_000;
// Longer than a sender can come back with the same event: attempts end after a day, dead letters after a week.
const KNOWN_SECONDS = 30 * 86_400;

/** Whether one of our secrets signed exactly these bytes. */
function is_genuine(string $body, string $signature): bool
{
    $fits = false;
    foreach (secrets() as $secret) {
        $fits = hash_equals('sha256=' . hash_hmac('sha256', $body, $secret), $signature) || $fits;
    }
    return $fits;
}

function secrets(): array
{
    return preg_split('/ +/', (string) getenv('WEBHOOK_SECRET'), -1, PREG_SPLIT_NO_EMPTY);
}

/** The event, or null if it is none. Its ids become names of files, so they may not be just anything. */
function read_event(string $body): ?array
{
    $event = json_decode($body, true, 64);
    $is_id = fn (mixed $id): bool => is_string($id) && preg_match('/\A[A-Za-z0-9_-]{1,64}\z/', $id) === 1;
    if (!is_array($event) || !$is_id($event['eventId'] ?? null) || !is_string($event['eventType'] ?? null)) {
        return null;
    }
    $outboxId = $event['data']['outboxId'] ?? null;
    $number = $event['sequenceNumber'] ?? null;
    return $outboxId === null || ($is_id($outboxId) && is_int($number) && $number >= 1) ? $event : null;
}

/** Keeps an event for the worker, unless it was here before. */
function keep(array $event, string $body): bool
{
    $lock = fopen(folder() . '/lock', 'c');
    flock($lock, LOCK_EX);
    $known = folder('known') . "/{$event['eventId']}";
    if (file_exists($known)) {
        return false;
    }
    $waiting = folder('waiting') . "/{$event['eventId']}";
    $draft = fopen("$waiting.draft", 'w');
    $isWritten = $draft !== false && fwrite($draft, $body) === strlen($body) && fsync($draft) && fclose($draft);
    if (!$isWritten || !rename("$waiting.draft", "$waiting.json") || !touch($known)) {
        throw new RuntimeException('the event cannot be kept');
    }
    return true;
}

function folder(string $name = ''): string
{
    // No default: in a folder that others can write to, they could put events before the worker.
    $inbox = getenv('INBOX') ?: throw new RuntimeException('INBOX is not set; it names the folder that keeps events');
    $path = rtrim("$inbox/$name", '/');
    if (!is_dir($path) && !@mkdir($path, 0700, true) && !is_dir($path)) {
        throw new RuntimeException("the folder $path cannot be made");
    }
    return $path;
}

/** Handles what is waiting: for each mail in order, and past a gap only when it is old. */
function handle_waiting(): void
{
    $mails = [];
    foreach (glob(folder('waiting') . '/*.json') as $path) {
        $event = json_decode(file_get_contents($path), true, 64, JSON_THROW_ON_ERROR);
        $mails[$event['data']['outboxId'] ?? ''][] = ['event' => $event, 'path' => $path];
    }
    foreach ($mails as $outboxId => $waiting) {
        handle_mail((string) $outboxId, $waiting);
    }
}

function handle_mail(string $outboxId, array $waiting): void
{
    usort($waiting, fn (array $a, array $b): int => $a['event']['sequenceNumber'] <=> $b['event']['sequenceNumber']);
    $place = folder('mails') . "/$outboxId";
    $next = $outboxId !== '' && file_exists($place) ? (int) file_get_contents($place) : 1;
    foreach ($waiting as ['event' => $event, 'path' => $path]) {
        $isTurn = $outboxId === '' || $event['sequenceNumber'] <= $next;
        if (!$isTurn && filemtime($path) + gap_wait_ms() / 1000 > time()) {
            return;
        }
        handle($event);
        if ($outboxId !== '') {
            $next = max($next, $event['sequenceNumber'] + 1);
            file_put_contents($place, (string) $next);
        }
        unlink($path);
    }
}

function gap_wait_ms(): int
{
    $given = getenv('GAP_WAIT_MS');
    return $given === false ? 600_000 : (int) $given;
}

/** Your part: an event, in its order among those of its mail unless its predecessors are lost or late. Again, if the
 *  worker was stopped between this and the removal of the file: best write both in one transaction. */
function handle(array $event): void
{
    $shown = ['eventId' => $event['eventId'], 'eventType' => $event['eventType']];
    $shown['outboxId'] = $event['data']['outboxId'] ?? null;
    $shown['sequenceNumber'] = $event['sequenceNumber'] ?? null;
    echo json_encode($shown, JSON_THROW_ON_ERROR), "\n";
}

function forget_old(): void
{
    foreach ([...glob(folder('known') . '/*'), ...glob(folder('mails') . '/*')] as $path) {
        if (filemtime($path) + KNOWN_SECONDS < time()) {
            unlink($path);
        }
    }
}

function work(): never
{
    $turn = fopen(folder() . '/worker', 'c');
    if (!flock($turn, LOCK_EX | LOCK_NB)) {
        fwrite(STDERR, "another worker runs here\n");
        exit(1);
    }
    for ($looks = 0;; $looks++) {
        if ($looks % 36_000 === 0) {
            forget_old();
        }
        clearstatcache();
        handle_waiting();
        usleep(LOOK_EVERY_US);
    }
}

function receive(): array
{
    if (secrets() === []) {
        return [500, 'WEBHOOK_SECRET is not set; without a secret anybody could send events'];
    }
    if ($_SERVER['REQUEST_METHOD'] !== 'POST') {
        return [405, 'only POST'];
    }
    // The bytes as they came: a body that was parsed and written again is another body.
    $body = (string) file_get_contents('php://input', length: BODY_BYTES_MAX + 1);
    if (strlen($body) > BODY_BYTES_MAX) {
        return [413, 'too long'];
    }
    if (!is_genuine($body, $_SERVER['HTTP_X_SIGNATURE'] ?? '')) {
        return [401, 'the signature is not right'];
    }
    $event = read_event($body);
    if ($event === null) {
        return [400, 'this is no event'];
    }
    return [200, keep($event, $body) ? 'taken' : 'known'];
}

if (PHP_SAPI === 'cli') {
    if (($argv[1] ?? '') === 'work') {
        work();
    }
    fwrite(STDERR, "usage: php -S 127.0.0.1:8000 receiver.php, and php receiver.php work\n");
    exit(2);
}
[$status, $text] = receive();
http_response_code($status);
header('Content-Type: text/plain');
echo "$text\n";
